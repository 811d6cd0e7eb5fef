"""Which GPUs a job sees, by the variables of CUDA and ROCm."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkrun.errors import UsageError
from blinkrun.topology.machine import Gpu, Machine, Xgmi
from blinkrun.topology.visible import gpu_of, is_amd, visibility_notes, visible

UUIDS = ("GPU-8932f937-d72c", "GPU-8932aaaa-d72c", "GPU-1b2c", "GPU-FFEE")
BUSES = ("0000:07:00.0", "0000:0f:00.0", "0001:07:00.0", "0000:8a:00.0")


def machine_of(buses=BUSES, uuids=UUIDS, models=("V100",) * 4, **facts):
    gpus = tuple(
        Gpu(f"GPU{at}", model=model, bus_id=bus, uuid=uuid)
        for at, (bus, uuid, model) in enumerate(zip(buses, uuids, models, strict=True))
    )
    return Machine("four", facts.pop("source", "NVML"), gpus, **facts)


FOUR = machine_of()
AMD = machine_of(source="amd-smi topology --json")


def cuda(text, machine=FOUR, **others):
    return visible(machine, {"CUDA_VISIBLE_DEVICES": text, **others})


def test_without_variables_a_job_sees_all():
    assert visible(FOUR, {"NVIDIA_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"}) == (
        0,
        1,
        2,
        3,
    )


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("0", (0,)),
        ("3,1", (3, 1)),
        (" 2 , 0 ", (2, 0)),
        ("+1,2", (1, 2)),
        ("1gpu,2", (1, 2)),  # as atoi reads it
        ("", ()),
        ("-1", ()),
        ("0,-1,1", (0,)),
        ("0,4,1", (0,)),
        ("0,,1", (0,)),
        ("NoDevFiles", ()),
        ("99999999999", ()),
        ("GPU-8932f937-d72c", (0,)),
        ("GPU-8932f,GPU-1", (0, 2)),
        ("gpu-1b2c", ()),
        ("GPU-ffee", (3,)),
        ("GPU-8932,GPU-1", ()),  # two GPUs begin like this
        ("GPU-1,GPU-9,GPU-8932f", (2,)),
        ("GPU-1,0", (2,)),  # all entries are read as the first
        ("0,GPU-1", (0,)),
        ("00000000:8A:00.0,07:00.0", (3, 0)),
        ("0001:07:00.0", (2,)),
        ("0000:99:00.0", ()),
        ("MIG-GPU-1b2c/3/0", (2,)),
    ],
)
def test_a_list_is_read_as_cuda_does(text, gpus):
    assert cuda(text) == gpus


@pytest.mark.parametrize("text", ["0,0", "1,2,1", "GPU-1,GPU-1b", "07:00.0,0000:07:00.0"])
def test_a_gpu_named_twice_is_an_error_as_for_cuda(text):
    with pytest.raises(UsageError, match=r"CUDA_VISIBLE_DEVICES=.* names GPU \d twice"):
        cuda(text)


@given(st.lists(st.integers(0, 3), unique=True, min_size=1))
def test_numbers_and_uuids_and_bus_ids_name_the_same(gpus):
    for names in (range(4), UUIDS, BUSES):
        assert cuda(",".join(str(names[gpu]) for gpu in gpus)) == tuple(gpus)


def test_a_part_of_a_gpu_is_that_gpu_if_it_is_told_of():
    environ = {"CUDA_VISIBLE_DEVICES": "MIG-c7384736-aa,MIG-77"}
    assert visible(FOUR, environ, {"MIG-c7384736-aa": 3, "MIG-770": 1}) == (3, 1)
    with pytest.raises(UsageError, match="MIG-c7384736-aa is a part of a GPU"):
        visible(FOUR, environ)
    with pytest.raises(UsageError, match="MIG-77 is a part of a GPU"):
        visible(FOUR, environ, {"MIG-c7384736-aa": 3, "MIG-770": 1, "MIG-771": 1})


@pytest.mark.parametrize(("text", "what"), [("GPU-1", "UUIDs"), ("07:00.0", "bus ids")])
def test_names_that_a_report_does_not_have(text, what):
    bare = machine_of(buses=("",) * 4, uuids=("",) * 4)
    with pytest.raises(UsageError, match=f"the {what} of four's GPUs are not known"):
        cuda(text, bare)


def test_the_order_of_bus_ids_counts_if_asked_for():
    mixed = machine_of(buses=("0001:01:00.0", "0000:8a:00.0", "0000:0f:00.0", "10000:01:00.0"))
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert visible(mixed, order) == (2, 1, 0, 3)
    assert cuda("1,0", mixed, **order) == (1, 2)
    assert cuda("1,0", mixed, CUDA_DEVICE_ORDER="FASTEST_FIRST") == (1, 0)
    hidden = machine_of(buses=("", *BUSES[1:]))
    assert visible(hidden, order) == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("environ", "gpus"),
    [
        ({}, (0, 1, 2, 3)),
        ({"ROCR_VISIBLE_DEVICES": "3,1,0"}, (3, 1, 0)),
        ({"ROCR_VISIBLE_DEVICES": "3,1,0", "HIP_VISIBLE_DEVICES": "2,0"}, (0, 3)),
        ({"ROCR_VISIBLE_DEVICES": "3,1,0", "HIP_VISIBLE_DEVICES": "0,3"}, (3,)),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "2"}, (1,)),
        ({"CUDA_VISIBLE_DEVICES": "2"}, (2,)),
        ({"ROCR_VISIBLE_DEVICES": "GPU-1", "HIP_VISIBLE_DEVICES": "0"}, (2,)),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, (0, 1, 2, 3)),
    ],
)
def test_rocms_variables_narrow_one_after_the_other(environ, gpus):
    assert visible(AMD, environ) == gpus


@pytest.mark.parametrize(
    "machine",
    [
        AMD,
        machine_of(source="sysfs", models=("AMD 0x740f",) * 4),
        machine_of(source="RCCL topology XML"),
        machine_of(source="by hand", xgmi=(Xgmi(0, 1),)),
        Machine("one", "by hand", (Gpu("GPU0", arch="gfx942"),)),
    ],
)
def test_which_machines_are_amds(machine):
    assert is_amd(machine)
    assert not is_amd(FOUR)


def test_notes_say_what_is_hidden():
    assert visibility_notes(FOUR, {}) == ()
    assert visibility_notes(FOUR, {"CUDA_VISIBLE_DEVICES": "3,1"}) == (
        "CUDA_VISIBLE_DEVICES=3,1: a job sees of these GPUs: 3 1",
    )
    assert visibility_notes(FOUR, {"CUDA_VISIBLE_DEVICES": ""}) == (
        "CUDA_VISIBLE_DEVICES=: a job sees of these GPUs: none",
    )
    assert visibility_notes(AMD, {"ROCR_VISIBLE_DEVICES": "1,0", "HIP_VISIBLE_DEVICES": "1"}) == (
        "ROCR_VISIBLE_DEVICES=1,0, HIP_VISIBLE_DEVICES=1: a job sees of these GPUs: 0",
    )


def test_notes_hold_the_error_of_a_list():
    (note,) = visibility_notes(FOUR, {"CUDA_VISIBLE_DEVICES": "1,1"})
    assert note.startswith("CUDA_VISIBLE_DEVICES=1,1 names GPU 1 twice")


def test_notes_say_that_cuda_knows_no_bus_ids():
    first, _ = visibility_notes(FOUR, {"CUDA_VISIBLE_DEVICES": "8a:00.0"})
    assert first == "CUDA_VISIBLE_DEVICES=8a:00.0: bus ids are understood here, but not by CUDA"


def test_notes_say_in_which_order_cuda_counts_unlike_gpus():
    mixed = machine_of(models=("V100", "V100", "T4", "T4"))
    (note,) = visibility_notes(mixed, {})
    assert note == "CUDA counts the fastest GPU first unless CUDA_DEVICE_ORDER=PCI_BUS_ID is set"
    assert visibility_notes(mixed, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) == ()


@pytest.mark.parametrize(
    ("text", "gpu"), [("2", 2), ("4", None), ("8A:00", 3), ("GPU-1", 2), ("", None), ("x", None)]
)
def test_any_name_of_a_gpu_finds_it(text, gpu):
    assert gpu_of(FOUR, text) == gpu


@given(st.text(max_size=12), st.sampled_from([FOUR, AMD]))
def test_any_text_gives_gpus_or_a_line(text, machine):
    try:
        gpus = cuda(text, machine)
    except UsageError:
        return
    assert set(gpus) <= set(range(4))
    assert len(set(gpus)) == len(gpus)
