"""Tuning while the job runs: it converges, noise or not, and small calls are left alone."""

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkrun.errors import PlanError, UsageError
from blinkrun.select.online import (
    LEAST_BYTES,
    MOST_CHUNK,
    Kind,
    OnlineTuner,
    kind_of,
    settled_from_json,
    settled_to_json,
)
from blinkrun.types import Collective

CALLS = [c for c in Collective if c is not Collective.BARRIER]


class Ranks:
    """A job whose first rank alone has a tuner; its word is the chunk of all."""

    def __init__(self, size, noise):
        self.tuner = OnlineTuner()
        self.chunks = [[] for _ in range(size)]
        self.noise = noise

    def call(self, collective, size_bytes, hops):
        posted = self.tuner.chunk_bytes(collective, size_bytes)
        for seen in self.chunks:
            seen.append(posted)
        time = self.time_ns(size_bytes, posted, hops) * self.noise.uniform(0.96, 1.04)
        self.tuner.record(collective, size_bytes, int(time))

    @staticmethod
    def time_ns(size_bytes, chunk, hops):
        return (size_bytes / chunk + hops - 1) * (chunk / 10 + 2000)


@given(size=st.integers(LEAST_BYTES, 1 << 28), hops=st.integers(1, 8), seed=st.integers(0, 999))
def test_it_converges_near_the_best_chunk_on_all_ranks(size, hops, seed):
    job = Ranks(4, Random(seed))
    for _ in range(100):
        job.call(Collective.ALLREDUCE, size, hops)
    assert job.tuner.is_settled(Collective.ALLREDUCE, size)
    assert all(chunks == job.chunks[0] for chunks in job.chunks)
    final = job.chunks[0][-1]
    ladder = [1 << power for power in range(12, 24) if 1 << power <= min(size // 2, MOST_CHUNK)]
    best = min(Ranks.time_ns(size, chunk, hops) for chunk in ladder)
    assert Ranks.time_ns(size, final, hops) <= 1.6 * best
    assert job.tuner.settled() == {kind_of(Collective.ALLREDUCE, size): final}


def test_kinds_of_calls_are_tuned_apart():
    tuner = OnlineTuner()
    for _ in range(3):
        tuner.record(Collective.BROADCAST, 1 << 20, 100, root=1)
    assert tuner.chunk_bytes(Collective.BROADCAST, 1 << 20, root=1) == 8 << 10
    for call in [(Collective.BROADCAST, 1 << 20, 0), (Collective.REDUCE, 1 << 20, 1)]:
        assert tuner.chunk_bytes(*call) == 4 << 10
    assert tuner.chunk_bytes(Collective.BROADCAST, 1 << 21, root=1) == 4 << 10
    assert tuner.chunk_bytes(Collective.BROADCAST, (1 << 21) - 4, root=1) == 8 << 10


def test_roots_count_only_where_there_are_roots():
    assert kind_of(Collective.ALLREDUCE, 1 << 20, 3) == kind_of(Collective.ALLREDUCE, 1 << 20, 0)
    assert kind_of(Collective.REDUCE, 1 << 20, 3) != kind_of(Collective.REDUCE, 1 << 20, 0)


@pytest.mark.parametrize("collective", list(Collective))
def test_small_calls_are_left_to_the_executor(collective):
    tuner = OnlineTuner()
    tuner.record(collective, LEAST_BYTES - 1, 100)
    assert tuner.chunk_bytes(collective, LEAST_BYTES - 1) == 0
    assert tuner.is_settled(collective, LEAST_BYTES - 1)
    assert not tuner.settled()


@given(
    st.dictionaries(
        st.builds(Kind, st.sampled_from(CALLS), st.integers(0, 9), st.integers(16, 40)),
        st.integers(1, 1 << 17).map(lambda lines: 64 * lines),
    )
)
def test_what_is_settled_is_kept_and_stays(settled):
    text = settled_to_json(settled)
    assert settled_from_json(text) == settled
    tuner = OnlineTuner(settled_from_json(text))
    for kind, chunk in settled.items():
        if kind == kind_of(kind.collective, 1 << kind.size_class, kind.root):
            tuner.record(kind.collective, 1 << kind.size_class, 1, kind.root)
            assert tuner.chunk_bytes(kind.collective, 1 << kind.size_class, kind.root) == chunk
    assert settled_to_json(tuner.settled()) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"version": 0, "chunks": []}',
        '{"version": 1}',
        json.dumps({"version": 1, "chunks": [["allsum", 0, 20, 64]]}),
        json.dumps({"version": 1, "chunks": [["allreduce", 0, 20, 65]]}),
        json.dumps({"version": 1, "chunks": [["allreduce", 0, 20, 0]]}),
        json.dumps({"version": 1, "chunks": [["allreduce", 0, 20]]}),
    ],
)
def test_other_text_is_refused(text):
    with pytest.raises(PlanError):
        settled_from_json(text)


def test_no_time_is_negative():
    with pytest.raises(UsageError, match="-1 ns"):
        OnlineTuner().record(Collective.ALLREDUCE, 1 << 20, -1)
