"""Streams of process groups on a `torch.cuda` made of Python: what is current, and when."""

import contextlib
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
streams = pytest.importorskip(
    "blinkrun.torch.distributed.streams", reason="needs torch.distributed"
)


class Cuda:
    """Device 0 is current at first, as in every new thread; what happens is noted in order."""

    def __init__(self):
        self.index, self.currents, self.log = 0, {}, []

    def Stream(self, device, priority):  # noqa: N802 - torch's name
        return self.made(device, "side")

    def made(self, device, name):
        return SimpleNamespace(
            device=device,
            name=name,
            wait_stream=lambda other: self.log.append(f"{name} waits for {other.name}"),
            wait_event=lambda event: self.log.append(f"{name} waits for {event}"),
            record_event=lambda: f"end of {name}",
        )

    def current_stream(self, device):
        return self.currents.setdefault(device.index, self.made(device, f"usual{device.index}"))

    @contextlib.contextmanager
    def device(self, device):
        before, self.index = self.index, device.index
        yield
        self.index = before

    @contextlib.contextmanager
    def stream(self, stream):
        assert stream.device.index == self.index, "a context on a device that nobody uses"
        before, self.currents[self.index] = self.current_stream(stream.device), stream
        yield
        self.currents[self.index] = before


@pytest.fixture
def cuda(monkeypatch):
    made = Cuda()
    for name in ("Stream", "current_stream", "device", "stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(made, name))
    return made


def test_a_call_aside_is_between_those_of_the_current_stream(cuda):
    side, used = streams.Side(1), []
    device = torch.device("cuda", 1)

    def body():
        cuda.log.append(f"body in {torch.cuda.current_stream(device).name}")

    end = side.run(body, [SimpleNamespace(record_stream=lambda stream: used.append(stream.name))])
    streams.DeviceWork(side, end, []).wait()
    assert cuda.log == [
        "side waits for usual1",
        "body in side",
        "usual1 waits for end of side",
    ]
    assert used == ["side"]
    assert cuda.index == 0


def test_a_helper_thread_works_in_the_stream_of_the_call(cuda):
    device = torch.device("cuda", 1)
    called_in = cuda.made(device, "caller's")
    with torch.cuda.device(device), torch.cuda.stream(called_in):
        act = streams.in_current(lambda: torch.cuda.current_stream(device).name, 1)
    assert torch.cuda.current_stream(device).name == "usual1"
    assert act() == "caller's"


@pytest.mark.parametrize(("end", "wanted"), [("end of side", "side"), (None, "usual1")])
def test_a_future_is_complete_in_the_stream_of_its_call(cuda, monkeypatch, end, wanted):
    """Also one that was put into the current stream, which the own one knows nothing of."""
    device, seen = torch.device("cuda", 1), []

    class Future:
        def __init__(self, devices):
            assert devices == [device]

        def set_result(self, results):
            seen.append((torch.cuda.current_stream(device).name, results))

    monkeypatch.setattr(torch.futures, "Future", Future)
    streams.DeviceWork(streams.Side(1), end, [7]).get_future()
    assert seen == [(wanted, [7])]
