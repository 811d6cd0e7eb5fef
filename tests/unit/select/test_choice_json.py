"""Choices by size as text: exactly there and back, and nothing else is taken for them."""

import json

import pytest

from blinkrun.errors import PlanError
from blinkrun.planner.make import in_shares
from blinkrun.planner.packing import Flow
from blinkrun.planner.solve import pack
from blinkrun.schedule.choice import Choice, Choices
from blinkrun.topology.catalog import machine


@pytest.fixture(scope="module")
def choices():
    topology = machine("dgx-2")
    few, joint = (in_shares(topology, *pack(topology, f)) for f in (Flow.BOTH, Flow.ALL_DOWN))
    return Choices(
        (
            Choice(4096, "one-hop", few),
            Choice(1 << 20, "packed", few, 64 << 10, 2),
            Choice(None, "packed", joint, 1 << 20, 4),
        )
    )


def test_there_and_back(choices):
    text = choices.to_json()
    assert Choices.from_json(text) == choices
    assert Choices.from_json(text).to_json() == text
    assert [Choices.from_json(text).of(size).chunk_bytes for size in (1, 4097, 1 << 30)] == [
        0,
        64 << 10,
        1 << 20,
    ]


def test_a_packing_is_written_once(choices):
    data = json.loads(choices.to_json())
    assert [entry["packing"] for entry in data["by_size"]] == [0, 0, 1]
    assert len(data["packings"]) == 2


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda data: data.update(version=0), "version 0"),
        (lambda data: data.pop("packings"), "no choices"),
        (lambda data: data["by_size"][0].update(packing=-1), "packing -1"),
        (lambda data: data["by_size"][0].update(packing=2), "packing 2"),
        (lambda data: data["by_size"].pop(), "any size"),
        (lambda data: data["by_size"][0].update(chunk_bytes=-4), "chunks of -4"),
        (lambda data: data["packings"][0].update(rate="fast"), "no choices"),
    ],
)
def test_what_is_no_choices_is_refused_with_a_reason(choices, change, complaint):
    data = json.loads(choices.to_json())
    change(data)
    with pytest.raises(PlanError, match=complaint):
        Choices.from_json(json.dumps(data))


@pytest.mark.parametrize("text", ["", "[]", "3", "{"])
def test_other_text_is_refused(text):
    with pytest.raises(PlanError, match="no choices"):
        Choices.from_json(text)
