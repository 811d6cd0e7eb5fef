"""The ways of ``bench --framework tf`` that run in processes beside the ranks (`tf_worker`)."""

from __future__ import annotations

import json
import os

from blinkrun.bench.framework import NEED_TF_KERAS, TF_WAYS, Options
from blinkrun.bench.libraries import Control
from blinkrun.bench.workers import START_S, Worker, clean_environ, free_port


class Remote:
    """A way in a worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def run(self, steps: int) -> float:
        """Return the seconds of `steps` steps; one more goes before them."""
        return float(self._worker.ask(do="run", steps=steps)["seconds"])

    def digest(self) -> str:
        """Return a word that stands for the weights."""
        return str(self._worker.ask(do="digest")["digest"])


class Remotes:
    """The workers of this rank; every rank has one of these and calls the same on it."""

    def __init__(self, options: Options, control: Control) -> None:
        self._options = options
        self._control = control
        self._workers: dict[str, Worker] = {}

    def make(self, kind: str, model: str) -> Remote | None:
        """Return way `kind` of `model`, or None where this rank has no part in it.

        ``mwms`` has a worker at every rank, others at rank 0. A worker is started once and has one
        model at a time.

        Raises
        ------
        LaunchError
            If the worker cannot be started or fails.
        """
        if kind not in self._workers:
            changes = self._meeting() if kind == "mwms" else {}
            if kind != "mwms" and self._control.rank != 0:
                return None
            self._workers[kind] = self._start(kind, changes)
        given = {"batch": self._options.batch, "rank": self._control.rank}
        self._workers[kind].ask(do="make", model=model, **given)
        return Remote(self._workers[kind])

    def peak_bytes(self, kind: str) -> int:
        """Return the most memory that the worker of this rank has held, 0 if there is none."""
        worker = self._workers.get(kind)
        return 0 if worker is None else int(worker.ask(do="peak")["peak_bytes"])

    def plain_memory(self, model: str, steps: int) -> dict[str, int]:
        """Return what one process takes at rest and at most that trains `model` without blinkrun.

        Rank 0 starts one for it; other ranks need not call.
        """
        worker = self._start("keras", {})
        try:
            rest = int(worker.ask(do="rest")["rest_bytes"])
            worker.ask(do="make", model=model, batch=self._options.batch, rank=0)
            worker.ask(do="run", steps=steps)
            return {"rest_bytes": rest, "peak_bytes": int(worker.ask(do="peak")["peak_bytes"])}
        finally:
            worker.close()

    def close(self) -> None:
        """End the workers of this rank."""
        for worker in self._workers.values():
            worker.close()

    def _meeting(self) -> dict[str, str]:
        """Return the variable that tells TensorFlow where its workers meet: on this host."""
        ports = self._control.allgather_object(free_port())
        workers = [f"127.0.0.1:{port}" for port in ports]
        task = {"type": "worker", "index": self._control.rank}
        return {"TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": task})}

    def _start(self, kind: str, changes: dict[str, str]) -> Worker:
        is_legacy = {"TF_USE_LEGACY_KERAS": "1"} if kind in NEED_TF_KERAS else {}
        keras = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
        environ = clean_environ(os.environ, **keras, **is_legacy, **changes)
        argv = ["-m", "blinkrun.bench.tf_worker", kind, str(self._options.threads)]
        title = TF_WAYS.get(kind, "Keras without blinkrun")
        worker = Worker(f"{title} at rank {self._control.rank}", argv, environ)
        worker.answer(START_S)
        return worker
