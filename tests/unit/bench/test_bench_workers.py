import os

import pytest

from blinkrun.bench.workers import Worker, clean_environ, free_port
from blinkrun.errors import LaunchError

ECHO = """
import json, sys
for line in sys.stdin:
    print(json.dumps({"got": json.loads(line)}), flush=True)
"""


@pytest.fixture
def start():
    workers = []

    def make(code):
        workers.append(Worker("the worker", ["-S", "-c", code], dict(os.environ)))
        return workers[-1]

    yield make
    for worker in workers:
        worker.close()


def test_a_worker_answers_one_request_after_another(start):
    worker = start(ECHO)
    assert worker.ask(do="run", steps=3) == {"got": {"do": "run", "steps": 3}}
    assert worker.ask(do="peak") == {"got": {"do": "peak"}}
    worker.close()
    assert worker._process.returncode == 0


def test_a_worker_that_ends_is_told_with_its_last_words(start):
    worker = start("import sys; print('I0000 x', file=sys.stderr); sys.exit('no port is free')")
    with pytest.raises(LaunchError, match=r"^bench: the worker ended with exit code 1: no port is"):
        worker.ask(do="run")


def test_chatter_of_tensorflow_is_no_reason(start):
    worker = start("import sys; sys.stderr.write('W0000 00:00 port.cc] oneDNN is on'); sys.exit(3)")
    with pytest.raises(LaunchError, match=r"ended with exit code 3: it said nothing$"):
        worker.ask(do="run")


def test_a_worker_that_cannot_says_why(start):
    worker = start("""print('{"error": "ValueError: no such model"}', flush=True); input()""")
    with pytest.raises(LaunchError, match=r"^bench: the worker failed: ValueError: no such model$"):
        worker.ask(do="make")


def test_a_late_worker_is_killed(start):
    worker = start("import time; time.sleep(60)")
    with pytest.raises(LaunchError, match=r"^bench: the worker took longer than 0 s$"):
        worker.ask(limit_s=0.05, do="run")
    assert worker._process.returncode == -9


def test_an_answer_that_comes_in_pieces_is_put_together(start):
    worker = start(
        """import sys, time
for piece in ('{"a"', ': 1}', '\\n{"b": 2}\\n'):
    sys.stdout.write(piece); sys.stdout.flush(); time.sleep(0.01)
input()"""
    )
    assert [worker.answer(), worker.answer()] == [{"a": 1}, {"b": 2}]


def test_the_job_and_proxies_are_kept_from_a_worker():
    environ = {"OMPI_X": "1", "HTTPS_PROXY": "p", "no_proxy": "q", "HOME": "/h", "TF_X": "old"}
    assert clean_environ(environ, TF_X="new") == {"HOME": "/h", "TF_X": "new"}


def test_a_free_port_is_a_port():
    assert 1024 <= free_port() < 65536
