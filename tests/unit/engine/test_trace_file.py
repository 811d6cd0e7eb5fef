"""Whatever is appended, the file is a whole array after every single write to it."""

import json
import os
import tempfile

from hypothesis import given, settings
from hypothesis import strategies as st

from blinkrun.engine import trace_file
from blinkrun.engine.trace_file import TraceFile

LENGTHS = st.one_of(st.integers(0, 300), st.sampled_from([4000, 4089, 4090, 4091, 4092, 9000]))


@given(st.lists(st.lists(LENGTHS, max_size=40), max_size=12), st.sampled_from([8192, 9000, 65536]))
@settings(max_examples=25, deadline=None)
def test_the_file_is_whole_after_every_write_and_no_write_crosses_a_page(batches, blanks):
    with tempfile.TemporaryDirectory() as folder:
        check_batches(f"{folder}/trace.json", batches, blanks)


def check_batches(path, batches, blanks):
    seen = []
    usual = trace_file._BLANKS_BYTES
    trace_file._BLANKS_BYTES = blanks
    real_write = os.pwrite

    def watched(file, text, offset):
        written = real_write(file, text, offset)
        if os.path.samestat(os.fstat(file), os.stat(path)):  # else the draft of a copy
            assert offset // 4096 == (offset + len(text) - 1) // 4096
            with open(path, encoding="utf-8") as reader:
                seen.append(len(json.load(reader)))
        return written

    elements = [json.dumps("first")]
    try:
        file = TraceFile(path, elements)
        trace_file.os.pwrite = watched
        for batch in batches:
            texts = [json.dumps("x" * length) for length in batch]
            file.append(texts)
            elements += texts
            with open(path, encoding="utf-8") as reader:
                assert [json.dumps(one) for one in json.load(reader)] == elements
        file.close()
        with open(path, encoding="utf-8") as reader:
            text = reader.read()
        assert [json.dumps(one) for one in json.loads(text)] == elements
        assert text.endswith('"\n]\n')
    finally:
        trace_file.os.pwrite = real_write
        trace_file._BLANKS_BYTES = usual
    assert seen == sorted(seen)


def test_a_long_file_is_copied_seldom(tmp_path, monkeypatch):
    copies = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda *paths: (copies.append(1), replace(*paths)))
    file = TraceFile(str(tmp_path / "trace.json"), ["0"])
    for _ in range(200):
        file.append(['"' + "x" * 98 + '"'] * 100)
    file.close()
    assert 2 < len(copies) < 10  # 2 MB
