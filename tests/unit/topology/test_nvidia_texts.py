"""Random machines in random shapes are read back equal; damaged texts give machines or errors."""

import random
import time
from pathlib import Path

import pytest
from support.nvidia_texts import damage, draw_machine, render

from blinkrun.errors import ReportError
from blinkrun.topology.machine import Machine
from blinkrun.topology.nvidia_smi import looks_like_nvidia_smi, read_nvidia_reports, read_nvidia_smi
from blinkrun.topology.serialize import facts

CASES = Path(__file__).parents[2] / "data" / "topologies"
SECONDS = 1.0
FEW, MANY = 10, 700  # seeds for one test, in a moment and with --run-slow


def check_round_trip(seed):
    rng = random.Random(seed)
    drawn = draw_machine(rng)
    text = render(rng, drawn)
    machine = read_nvidia_smi(text, f"seed {seed}")
    assert {key: facts(machine)[key] for key in drawn.facts()} == drawn.facts(), (seed, text)
    assert looks_like_nvidia_smi(text), (seed, text)
    assert {nic.name: nic.device for nic in machine.nics if nic.device} == drawn.devices, seed
    if drawn.has_clear_values and "CPU Affinity" in drawn.headings:
        assert {gpu.name: gpu.cpus for gpu in machine.gpus} == drawn.cpus, (seed, text)
    if drawn.has_clear_values and any("NUMA" in heading for heading in drawn.headings):
        assert {gpu.name: gpu.numa for gpu in machine.gpus} == drawn.numa, (seed, text)


def check_neighbours(seed):
    rng = random.Random(seed)
    drawn = [draw_machine(rng, max_gpus=5) for _ in range(rng.choice((2, 3)))]
    texts = [render(rng, one).replace("\r\n", "\n") for one in drawn]
    text = rng.choice(("\n", "\n\n", "\n\nand another:\n")).join(texts)
    machines = read_nvidia_reports(text, f"seed {seed}")
    found = [{key: facts(machine)[key] for key in drawn[0].facts()} for machine in machines]
    assert found == [one.facts() for one in drawn], (seed, text)


def outcome(text, partial):
    try:
        return read_nvidia_reports(text, "paste", partial=partial)
    except ReportError as error:
        return error


def check_damaged(seed, texts):
    text = damage(random.Random(seed), texts)
    for partial in (False, True):
        began = time.process_time()
        found = outcome(text, partial)
        assert time.process_time() - began < SECONDS, seed
        if isinstance(found, ReportError):
            assert str(found).startswith("paste"), seed
            assert "\n" not in str(found), seed
            assert not (partial and found.partial), seed
            offered = found.partial
        else:
            assert found, seed
            assert all(isinstance(machine, Machine) for machine in found), seed
            offered = False
        assert not offered or not isinstance(outcome(text, partial=True), ReportError), seed


@pytest.fixture(scope="module")
def texts():
    return [path.read_bytes().decode() for path in sorted(CASES.glob("*/input.*"))]


@pytest.mark.parametrize("start", range(0, 20 * FEW, FEW))
def test_machine_is_read_back_from_its_text(start):
    for seed in range(start, start + FEW):
        check_round_trip(seed)


@pytest.mark.parametrize("start", range(0, 10 * FEW, FEW))
def test_machines_in_one_text_are_read_back_in_order(start):
    for seed in range(start, start + FEW):
        check_neighbours(seed)


@pytest.mark.parametrize("start", range(0, 30 * FEW, FEW))
def test_damaged_text_is_a_machine_or_an_error(start, texts):
    for seed in range(start, start + FEW):
        check_damaged(seed, texts)


@pytest.mark.slow
def test_many_machines_are_read_back():
    for seed in range(10_000, 10_000 + MANY):
        check_round_trip(seed)
        check_neighbours(seed)


@pytest.mark.slow
def test_many_damaged_texts_are_machines_or_errors(texts):
    for seed in range(10_000, 10_000 + MANY):
        check_damaged(seed, texts)
