"""Arrays of devices as addresses: what is asked of torch, cupy, the array interface and DLPack."""

import contextlib
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from blinkrun import buffers, dlpack
from blinkrun.calls import make_request
from blinkrun.errors import InvalidBufferError
from blinkrun.handle import Handle
from blinkrun.types import Collective, DType


class Shown:
    """An array of some library, in memory of the host that passes for a device's."""

    def __init__(self, array, stream=None, **more):
        self.array = array
        self.interface = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (array.__array_interface__["data"][0], not array.flags.writeable),
            "strides": None if array.flags.c_contiguous else array.strides,
            "stream": stream,
            "version": 3,
            **more,
        }
        self.device = 3

    @property
    def __cuda_array_interface__(self):
        return self.interface


class Offered:
    """Memory that is offered through DLPack only, from a device."""

    def __init__(self, array, device=(dlpack.CUDA, 2)):
        self.array = array
        self.device = device
        self.streams = []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None):
        self.streams.append(stream)
        return self.array.__dlpack__()


def values(count=6, dtype=np.float32):
    return np.arange(count).astype(dtype)


def test_an_array_interface():
    found = buffers.view(Shown(values()), "x")
    assert (found.device, found.stream, found.count) == (3, 0, 6)
    assert (found.dtype, found.shape, found.writable) == (DType.FLOAT32, (6,), True)
    fixed = values()
    fixed.flags.writeable = False
    assert not buffers.view(Shown(fixed), "x").writable
    raw = buffers.raw_view(Shown(values().reshape(2, 3)), "x")
    assert (raw.dtype, raw.count, raw.shape) == (DType.UINT8, 24, (2, 3))


@pytest.mark.parametrize(("said", "stream"), [(None, 0), (1, 0), (2, 2), (0x7F00, 0x7F00)])
def test_streams_of_the_array_interface(said, stream):
    assert buffers.view(Shown(values(), said), "x").stream == stream
    assert buffers.is_in_no_stream(Shown(values(), said)) == (said is None)


def test_bfloat16_has_no_letter():
    shown = Shown(values(4, np.uint16))
    shown.interface["typestr"] = "<V2"
    with pytest.raises(InvalidBufferError, match="dtype"):
        buffers.view(shown, "x")
    shown.dtype = buffers.numpy_dtype("bfloat16")
    assert buffers.view(shown, "x").dtype is DType.BFLOAT16


@pytest.mark.parametrize(
    ("shown", "what"),
    [
        (Shown(values()[::2]), "not contiguous"),
        (Shown(values(), mask=object()), "mask"),
        (Shown(values(dtype=np.complex64)), "dtype"),
        (Shown(values(9, np.uint8)[1:9].view(np.float64)), "not aligned"),
    ],
)
def test_arrays_that_cannot_be_used(shown, what):
    with pytest.raises(InvalidBufferError, match=f"^x .*{what}"):
        buffers.view(shown, "x")


def test_an_array_that_does_not_name_its_device(monkeypatch):
    shown = Shown(values())
    del shown.device
    monkeypatch.setattr(buffers, "device_at", {shown.interface["data"][0]: 5}.get)
    assert buffers.device_of(shown) == 5


def test_memory_of_the_host_needs_no_device_library(monkeypatch):
    for name in ("cupy", "torch", "numba.cuda", "tensorflow"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert buffers.device_at(values().ctypes.data) is None
    for item in (values(), bytearray(3), 7, "text"):
        assert buffers.device_of(item) is None


@pytest.mark.parametrize("dtype", [d for d in DType if d is not DType.BFLOAT16])
def test_dlpack_of_every_type(dtype):
    array = values(6, dtype.label).reshape(2, 3)
    found = dlpack.exported(array, "x")
    assert found.pointer == array.ctypes.data
    assert (found.device_type, found.shape) == (dlpack.CPU, (2, 3))
    assert (found.dtype, found.itemsize, found.contiguous) == (dtype, dtype.itemsize, True)
    assert not dlpack.exported(array[:, :2], "x").contiguous
    assert dlpack.exported(array[:0], "x").contiguous


def test_dlpack_of_a_device():
    offered = Offered(values())
    found = buffers.view(offered, "x")
    assert (found.device, found.stream, found.count) == (2, 0, 6)
    assert found.pointer == offered.array.ctypes.data
    assert offered.streams == [1]  # its maker lets the default stream wait
    assert buffers.device_of(Offered(values(), (dlpack.CPU, 0))) is None
    with pytest.raises(InvalidBufferError, match="not contiguous"):
        buffers.view(Offered(values()[::2]), "x")
    with pytest.raises(InvalidBufferError, match="dtype"):
        buffers.view(Offered(values(dtype=np.uint16)), "x")


def test_what_is_no_capsule():
    with pytest.raises(InvalidBufferError, match="no DLPack capsule"):
        dlpack.exported(7, "x")


class Tensor:
    """A torch tensor, as far as buffers look at one."""

    layout = "strided"

    def __init__(self, array, index=1):
        self.array = array
        self.device = SimpleNamespace(type="cuda", index=index)
        self.dtype = f"torch.{array.dtype.name}"
        self.shape = array.shape
        self.is_cuda, self.is_cpu = True, False
        self.calls = []

    def is_contiguous(self):
        return self.array.flags.c_contiguous

    def data_ptr(self):
        return self.array.__array_interface__["data"][0]

    def numel(self):
        return self.array.size

    def element_size(self):
        return self.array.itemsize

    def detach(self):
        return self

    def clone(self, memory_format):
        assert memory_format == "packed"
        return Tensor(self.array.copy("C"), self.device.index)

    def record_stream(self, stream):
        self.calls.append(stream)

    def new_empty(self, shape):
        return Tensor(np.empty(shape, self.array.dtype), self.device.index)


@pytest.fixture
def torch(monkeypatch):
    cuda = SimpleNamespace(
        current_stream=lambda device: SimpleNamespace(cuda_stream=0x100 + device.index),
        ExternalStream=lambda stream, device: (stream or "a new one", device.index),
        default_stream=lambda device: ("default", device.index),
        is_initialized=lambda: True,
    )
    module = SimpleNamespace(
        Tensor=Tensor, strided="strided", contiguous_format="packed", cuda=cuda
    )
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


def test_tensors_of_a_device(torch):
    tensor = Tensor(values())
    found = buffers.view(tensor, "x")
    assert (found.device, found.stream, found.dtype) == (1, 0x101, DType.FLOAT32)
    for stream in (0x7, 0):
        buffers.record_stream(tensor, stream)
    assert tensor.calls == [(0x7, 1), ("default", 1)]
    assert buffers.new_like(tensor, (2, 2)).shape == (2, 2)
    loose = Tensor(values()[::2])
    with pytest.raises(InvalidBufferError, match=r"pass tensor.contiguous\(\)"):
        buffers.view(loose, "x")
    assert buffers.view(loose, "x", packed=False).count == 3


def test_torch_is_asked_for_no_more_than_the_address_of_a_stream(torch):
    torch._C = SimpleNamespace(_cuda_getCurrentRawStream=lambda index: 0x300 + index)
    torch.cuda = None
    assert buffers.stream_of(Tensor(values())) == 0x301


def test_requests_of_tensors(torch):
    request = make_request(Collective.ALLREDUCE, Tensor(values()), Tensor(values()), size=2)
    assert (request.device, request.stream) == (1, 0x101)
    loose = Tensor(values(12)[::2])
    copied = make_request(Collective.ALLREDUCE, loose, Tensor(values()), size=2)
    copy = copied.keep[0]  # held until the call is through
    np.testing.assert_array_equal(copy.array, loose.array)
    assert copied.input == copy.data_ptr() != loose.data_ptr()
    with pytest.raises(InvalidBufferError, match="in place"):
        make_request(Collective.ALLREDUCE, loose, loose, size=2)
    both = Tensor(values())
    moved = make_request(Collective.ALLTOALL, both, both, size=2)
    assert moved.input != moved.output
    with pytest.raises(InvalidBufferError, match="on device 1, out is on device 0"):
        make_request(Collective.ALLREDUCE, Tensor(values()), Tensor(values(), 0), size=2)


class Job:
    """A call in the communicator's own stream."""

    def __init__(self):
        self.waited = []

    def wait_on(self, stream):
        self.waited.append(stream)


def test_a_handle_orders_the_current_stream(torch):
    """The allocator hears of it if the result was made in another; of streams of ours, never."""
    job, given, result = Job(), Tensor(values()), Tensor(values())
    request = make_request(Collective.ALLREDUCE, given, result, size=2)
    assert Handle(None, job, result, request).wait() is result
    assert job.waited == [0x101]
    assert result.calls == []
    torch.cuda.current_stream = lambda device: SimpleNamespace(cuda_stream=0x900)
    Handle(None, job, result, request).wait()
    assert job.waited == [0x101, 0x900]
    assert result.calls == [(0x900, 1)]
    assert Handle(None, job, None, request).wait() is None  # takes no result: a reduce elsewhere


def test_memory_of_the_host_has_no_stream():
    request = make_request(Collective.ALLREDUCE, values(), values(), size=2)
    assert (request.device, request.stream) == (-1, None)


class CupyArray(Shown):
    """A cupy array, as far as buffers look at one."""

    def __init__(self, array, device):
        super().__init__(array, 1)
        self.device = device
        self.dtype = array.dtype

    def copy(self, order):
        assert order == "C"
        assert self.device.is_current
        return CupyArray(self.array.copy("C"), self.device)


class CupyDevice(contextlib.AbstractContextManager):
    id = 4
    is_current = False

    def __enter__(self):
        self.is_current = True

    def __exit__(self, *_):
        self.is_current = False


@pytest.fixture
def cupy(monkeypatch):
    device = CupyDevice()

    def empty(shape, dtype):
        assert device.is_current
        return CupyArray(np.empty(shape, dtype), device)

    streams = SimpleNamespace(get_current_stream=lambda index: SimpleNamespace(ptr=0x200 + index))
    module = SimpleNamespace(ndarray=CupyArray, empty=empty, cuda=streams)
    monkeypatch.setitem(sys.modules, "cupy", module)
    return device


def test_arrays_of_cupy(cupy):
    array = CupyArray(values(), cupy)
    found = buffers.view(array, "x")
    assert (found.device, found.stream) == (4, 0x204)  # the current one, whatever the array says
    assert buffers.new_like(array, (2, 3)).array.shape == (2, 3)
    loose = CupyArray(values(12)[::2], cupy)
    request = make_request(Collective.ALLREDUCE, loose, array, size=2)
    assert request.input == request.keep[0].interface["data"][0]
    assert (request.device, request.stream) == (4, 0x204)
    buffers.record_stream(array, 7)  # cupy does not want to know


def test_arrays_of_two_libraries(torch, cupy):
    """Nothing orders their current streams."""
    tensor = Tensor(values(), 4)
    with pytest.raises(InvalidBufferError, match="stream 0x104, out in stream 0x204"):
        make_request(Collective.ALLREDUCE, tensor, CupyArray(values(), cupy), size=2)
    anywhere = Shown(values())
    anywhere.device = 4
    assert make_request(Collective.ALLREDUCE, tensor, anywhere, size=2).stream == 0x104
    assert make_request(Collective.ALLREDUCE, anywhere, tensor, size=2).stream == 0x104
