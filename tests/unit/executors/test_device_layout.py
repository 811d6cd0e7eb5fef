"""What the host takes for the layout of device memory is what the core was compiled with."""

import ctypes

import pytest

from blinkrun.executors import device_layout as layout
from blinkrun.executors import native
from blinkrun.executors.base import Request
from blinkrun.executors.device_call import CALL, prepare
from blinkrun.executors.device_programs import Loaded
from blinkrun.types import Collective, DType, Op

THEIRS = native.device_layout()
MIRRORS = {
    "DeviceDesc": layout.Desc,
    "DevicePost": layout.Post,
    "DeviceControl": layout.Control,
    "DeviceReport": layout.Report,
    "DeviceCounts": layout.Counts,
    "DeviceHost": layout.Host,
    "DeviceGroup": layout.Group,
    "DeviceCall": layout.Call,
}


@pytest.mark.parametrize("name", MIRRORS)
def test_sizes_and_offsets_are_equal(name):
    mirror = MIRRORS[name]
    fields = {key: value for key, value in THEIRS.items() if key.startswith(f"{name}.")}
    assert THEIRS[name] == ctypes.sizeof(mirror)
    assert fields
    for key, offset in fields.items():
        assert getattr(mirror, key.split(".")[1]).offset == offset, key


def test_constants_are_equal():
    ours = {
        "kDeviceRanks": layout.RANKS,
        "kDeviceFlags": layout.FLAGS,
        "kDeviceStreams": layout.STREAMS,
        "kDeviceLanes": layout.LANES,
        "kRingDepth": layout.RING_DEPTH,
        "kDeviceControlBytes": layout.CONTROL_BYTES,
        "kDeviceEagerBytes": layout.EAGER_BYTES,
    }
    assert {name: THEIRS[name] for name in ours} == ours


def test_a_packed_call_is_the_structure():
    words = [*range(1, 11), 0.5, 0.25, 13, -1, 15, 16, 17]
    call = layout.Call.from_buffer_copy(layout.CALL.pack(*words))
    assert (call.group, list(call.programs)) == (1, [2, 3, 4, 5])
    assert (call.input, call.output, call.count, call.eager_bytes, call.scales) == (6, 7, 8, 9, 10)
    assert (call.prescale, call.postscale, call.timeout_ns) == (0.5, 0.25, 13)
    assert (call.root, call.collective, call.dtype, call.op) == (-1, 15, 16, 17)
    assert layout.CALL.size == ctypes.sizeof(layout.Call)


def test_a_prepared_call_lacks_its_addresses_and_its_timeout():
    request = Request(
        Collective.REDUCE, DType.INT64, Op.MAX, 3, 0, 0, 1000, 0.5, 0.25, keep=(), stream=0
    )
    loaded = Loaded(2**64 - 1, (2, 3, 4, 5), lanes=7, eager_bytes=64, eager_lanes=1, flat=b"")
    made = prepare(request, loaded, group=1, most_blocks=5)
    words = CALL.pack(made.head, 6, 7, made.middle, 13, made.tail)
    scales = layout.hash_scales(0.5, 0.25)
    assert words == layout.CALL.pack(
        *range(1, 8), 1000, 64, scales, 0.5, 0.25, 13, 3, Collective.REDUCE, DType.INT64, Op.MAX
    )
    assert (made.dtype, made.blocks) == (DType.INT64, loaded.blocks(8000, 5))


def test_scales_that_differ_differ_in_their_hash():
    scales = [(1.0, 1.0), (1.0, 2.0), (2.0, 1.0), (2.0, 2.0), (1.0, -1.0), (0.0, 0.0)]
    assert len({layout.hash_scales(*each) for each in scales}) == len(scales)
