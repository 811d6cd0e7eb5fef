"""What the host takes for the layout of device memory is what the core was compiled with."""

import ctypes

import pytest

from blinkrun.executors import device_layout as layout
from blinkrun.executors import native

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


def test_scales_that_differ_differ_in_their_hash():
    scales = [(1.0, 1.0), (1.0, 2.0), (2.0, 1.0), (2.0, 2.0), (1.0, -1.0), (0.0, 0.0)]
    assert len({layout.hash_scales(*each) for each in scales}) == len(scales)
