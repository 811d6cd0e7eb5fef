"""What asynchronous calls return, and the threads that carry them out in order."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import Work

from blinkrun import env
from blinkrun.errors import CollectiveTimeoutError

OF_JOB = f"raise {env.TIMEOUT} (or --timeout)"
OF_GROUP = "give init_process_group a longer timeout"
IDLE_S = 10.0  # after which a helper thread with nothing to do ends


def carried_out(body: Callable[[], Any]) -> Any:
    """Return what `body` returns; a deadline that ends it is the process group's own.

    The core does not know who gave it, and advises to raise that of the job.
    """
    try:
        return body()
    except CollectiveTimeoutError as err:
        if env.TIMEOUT in os.environ:
            raise
        text = str(err).replace(OF_JOB, OF_GROUP)
        raise CollectiveTimeoutError(text, err.ranks, err.timeout_s) from None


class DoneWork(Work):
    """A call that is through already."""

    def __init__(self, results: list[Any], source: int = -1) -> None:
        super().__init__()
        self._results = results
        self._source = source

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return True at once."""
        del timeout
        return True

    def synchronize(self) -> None:
        """Do nothing: on the CPU, what is done can be seen."""

    def is_completed(self) -> bool:
        """Return True."""
        return True

    def is_success(self) -> bool:
        """Return True: a call that fails raises."""
        return True

    def exception(self) -> None:
        """Return None."""

    def result(self) -> list[Any]:
        """Return the tensors that the call has written."""
        return self._results

    def source_rank(self) -> int:
        """Return the rank that a received message came from."""
        return self._source

    def _source_rank(self) -> int:
        return self._source

    def get_future(self) -> Any:
        """Return a completed future of the tensors."""
        future: Any = torch.futures.Future()
        future.set_result(self._results)
        return future


class PendingWork(Work):
    """A call that another thread carries out."""

    def __init__(self, body: Callable[[], Any], results: list[Any], what: str) -> None:
        super().__init__()
        self._body: Callable[[], Any] | None = body
        self._results = results
        self._what = what
        self._error: BaseException | None = None
        self._value: Any = None
        self._finished = threading.Event()
        self._lock = threading.Lock()  # of the future: made and completed by different threads
        self._future: Any = None

    def carry_out(self) -> None:
        """Run the call; for the thread that serves it, once, with `finish` after it."""
        body, self._body = self._body, None
        try:
            if body is not None:
                self._value = carried_out(body)
        except BaseException as err:  # raised by `wait`, in the thread that wants the result
            self._error = err

    def drop(self, error: BaseException) -> None:
        """Let the call fail with `error` without having run."""
        self._body = None
        self._error = error
        self.finish()

    def finish(self) -> None:
        """Let those who wait go on, and run the callbacks of the future."""
        self._finished.set()
        with self._lock:
            future = self._future
        if future is not None:
            self._complete(future)

    def _complete(self, future: Any) -> None:
        if self._error is None:
            future.set_result(self._results)
        else:
            future.set_exception(self._error)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the call, and raise what went wrong in it.

        Raises
        ------
        CollectiveTimeoutError
            If it is not through within `timeout`; it goes on all the same.
        """
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        if not self._finished.wait(seconds if seconds > 0 else None):
            raise CollectiveTimeoutError(
                f"{self._what} was not through within {seconds:g} s", (), seconds
            )
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        """Wait for the call."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether the call is through, with or without success."""
        return self._finished.is_set()

    def is_success(self) -> bool:
        """Whether the call is through and went well."""
        return self._finished.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        """Return what went wrong, None while nothing has."""
        return self._error

    def result(self) -> list[Any]:
        """Return the tensors that the call writes, after waiting for it."""
        self.wait()
        return self._results

    def source_rank(self) -> int:
        """Return the rank that a received message came from."""
        return -1 if self._value is None else int(self._value)

    def _source_rank(self) -> int:
        return self.source_rank()

    def get_future(self) -> Any:
        """Return a future of the tensors; its callbacks run in the thread that serves the call."""
        future: Any = torch.futures.Future()
        with self._lock:
            if self._future is not None:
                return self._future
            self._future = future
            is_late = self._finished.is_set()
        if is_late:
            self._complete(future)
        return future


class Lane:
    """Carries out calls one after the other: in the caller's thread, or behind its back.

    A call that is waited for at once runs in the caller's thread if nothing is before it.

    Parameters
    ----------
    name : str
        Of the helper thread, which is started by the first `submit`.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._turn = threading.Lock()  # held by whoever carries out a call
        self._count = threading.Lock()
        self._behind = 0  # calls submitted and not through
        self._jobs: queue.SimpleQueue[PendingWork | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed: BaseException | None = None
        self._helper = 0  # the thread that serves what was submitted, while it does
        self.is_helping = False  # whether it carries out a call now

    @property
    def is_behind(self) -> bool:
        """Whether a call would be carried out by the helper thread: others are before it."""
        return bool(self._behind)

    def call(self, body: Callable[[], Any], results: list[Any], what: str) -> Work:
        """Carry out `body` before this returns; raises what it raises."""
        if self._behind and threading.get_ident() != self._helper:
            work = self.submit(body, results, what)
            work.wait()
            return work
        with self._turn:
            if self._closed is not None:
                raise self._closed
            value = carried_out(body)
        return DoneWork(results, -1 if value is None else value)

    def submit(self, body: Callable[[], Any], results: list[Any], what: str) -> PendingWork:
        """Have the helper thread carry out `body` after what was submitted before.

        A callback of a future, which the helper itself runs, gets its call carried out at once.
        """
        work = PendingWork(body, results, what)
        if threading.get_ident() == self._helper:
            with self._turn:
                work.carry_out()
            work.finish()
            return work
        with self._count:
            if self._closed is not None:
                work.drop(self._closed)
                return work
            self._behind += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                self._thread.start()
            self._jobs.put(work)
        return work

    def refuse(self, error: BaseException) -> None:
        """Take no more calls, which get `error`; those before go on."""
        with self._count:
            self._closed = error
            if self._thread is not None:
                self._jobs.put(None)

    def join(self, timeout_s: float) -> bool:
        """Wait for the calls before `refuse`; False if they are not through within `timeout_s`."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout_s)
        return not thread.is_alive()

    def _serve(self) -> None:
        self._helper = threading.get_ident()
        while True:
            try:
                work = self._jobs.get(timeout=IDLE_S)
            except queue.Empty:
                if self._is_over():
                    return
                continue
            if work is None:
                self._helper = 0
                return
            with self._turn:
                self.is_helping = True
                work.carry_out()
                self.is_helping = False
            with self._count:
                self._behind -= 1
            work.finish()  # when the lane is free again for who waits
            del work  # its tensors are the caller's

    def _is_over(self) -> bool:
        """End this thread's service if nothing is left to do; the next call starts another."""
        with self._count:
            if self._behind:
                return False
            self._thread = None
            self._helper = 0
            return True
