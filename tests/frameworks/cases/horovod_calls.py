"""What a script sees of `horovod.torch` beyond training: errors, sets, join, timeline, absences."""

import importlib
import importlib.util
import json
import os
import sys
import time
from pathlib import Path

import horovod
import horovod.torch as hvd
import mpi4py
import pytest
import torch
from horovod.common.exceptions import HorovodInternalError
from horovod.common.util import env
from horovod.torch import mpi_ops
from packaging.version import Version

NAMES = Path(sys.argv[1]).read_text().split()
TIMELINE = f"{sys.argv[2]}.{os.getpid()}"  # one for each rank; Horovod writes that of rank 0


def check_names():
    assert Version(horovod.__version__).public == "0.28.1"
    assert sorted(name for name in hvd.__all__ if name in NAMES) == sorted(NAMES)
    for name in NAMES:
        assert getattr(hvd, name) is not None
    assert mpi_ops.allreduce is hvd.allreduce
    assert HorovodInternalError is hvd.HorovodInternalError
    assert (hvd.mpi_built(), hvd.mpi_enabled(), hvd.nccl_built()) == (True, True, 0)
    assert not any((hvd.gloo_built(), hvd.ccl_built(), hvd.ddl_built(), hvd.rocm_built()))
    assert hvd.cuda_built() is (importlib.util.find_spec("cupy") is not None)


def check_absences():
    with pytest.raises(ImportError, match=r"horovod.torch.elastic.run is absent .*later part"):
        hvd.elastic.run(print)
    with pytest.raises(ImportError, match=r"horovod.common.util.check_extension is absent"):
        importlib.import_module("horovod.common.util").check_extension  # noqa: B018
    for name, why in (
        ("torch.elastic.state", "elastic"),
        ("_keras.callbacks", "horovod.tensorflow.keras"),
        ("spark", "not by Spark"),
        ("runner.launch", "command blinkrun"),
        ("nothing_known", "no meaning here"),
    ):
        with pytest.raises(ModuleNotFoundError, match=rf"^horovod\.\S+ is absent .*{why}"):
            importlib.import_module(f"horovod.{name}")
    with pytest.raises(ValueError, match="blinkrun -np N --horovod"):
        horovod.run(print, np=2)


def check_errors(rank, size):
    with pytest.raises(HorovodInternalError, match="'uneven'") as caught:
        hvd.allreduce(torch.zeros(2 + rank), name="uneven")
    assert isinstance(caught.value, RuntimeError)
    with pytest.raises(RuntimeError, match="'kinds'"):
        hvd.allreduce(torch.zeros(2, dtype=torch.int32 if rank else torch.float32), name="kinds")
    with pytest.raises(ValueError, match="op"):
        hvd.allreduce(torch.zeros(2), average=True, op=hvd.Sum)
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [size] * 2  # all goes on


def check_sets(rank, size):
    others = hvd.add_process_set(range(1, size))
    assert others.included() == (rank > 0)
    if others.included():
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=others).item() == size - 1
        gathered = hvd.allgather(torch.tensor([rank]), process_set=others)
        assert gathered.tolist() == list(range(1, size))
        assert hvd.broadcast(torch.tensor([rank]), root_rank=1, process_set=others).item() == 1
    assert hvd.remove_process_set(others)
    assert others.process_set_id is None


def check_join(rank, size):
    for first in range(size):
        if rank != first:
            with pytest.raises(RuntimeError, match="joined"):
                hvd.allgather(torch.ones(3))
            for _ in range(rank):  # uneven steps
                hvd.allreduce(torch.ones(3), name="step", op=hvd.Sum)
        last = hvd.join()
        assert hvd.allgather_object(last) == [last] * size


def check_timeline(rank):
    hvd.allreduce(torch.ones(3), name="seen")
    ends_s = time.monotonic() + 10
    while rank == 0:  # it is written while the job runs, and whole at every moment
        text = Path(TIMELINE).read_text()
        json.loads(text)
        if all(word in text for word in ("allreduce.seen", "NEGOTIATE_ALLREDUCE", "CYCLE_START")):
            break
        assert time.monotonic() < ends_s, text[-2000:]
        time.sleep(0.01)
    hvd.barrier()


def main():
    with pytest.raises(ValueError, match="init"):
        hvd.rank()
    mpi4py.rc.initialize = False  # as scripts do that leave MPI to Horovod
    sets = [hvd.ProcessSet([0])]
    with env(HOROVOD_TIMELINE=TIMELINE, HOROVOD_TIMELINE_MARK_CYCLES="1"):
        hvd.init(process_sets=sets)
    assert "HOROVOD_TIMELINE" not in os.environ
    rank, size = hvd.rank(), hvd.size()
    assert (sets[0].process_set_id, sets[0].included()) == (1, rank == 0)
    check_names()
    check_absences()
    check_errors(rank, size)
    check_sets(rank, size)
    check_join(rank, size)
    check_timeline(rank)
    hvd.shutdown()
    assert not hvd.is_initialized()
    hvd.init()
    assert os.environ.get("BLINKRUN_TIMELINE") is None  # it was of the first time
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == size
    print(f"rank {rank} of {size}: ok")


main()
