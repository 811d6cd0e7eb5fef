"""Runs one job from start to end: one loop over the ranks, mpiexec, the output and the signals."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial

from blinkrun import env
from blinkrun.launcher import agent_tools
from blinkrun.launcher.connection import Connection
from blinkrun.launcher.control import ControlServer
from blinkrun.launcher.far import PROBE_S, STDIN_FD, FarConnection, FarSide, meeting_point
from blinkrun.launcher.means import Means
from blinkrun.launcher.outcome import (
    EXIT_FAILED,
    Outcome,
    Reason,
    Stop,
    decide,
    name_ranks,
)
from blinkrun.launcher.process import MpiProcess, SignalInbox
from blinkrun.launcher.remote import AGENT_JOB
from blinkrun.launcher.sink import Sink
from blinkrun.launcher.spec import JobSpec
from blinkrun.launcher.watch import HangWatch, group_cpu_seconds

TERM_GRACE_S = 1.0  # between SIGTERM and SIGKILL when a rank has failed
SIGNAL_GRACE_S = 2.0  # the same when the user ends the job: programs may want to save something
FAR_SETTLE_S = 0.7  # the same in addition where that one may be on another host
SETTLE_S = 0.3  # a rank that blames another: how long that one has to show its own end
GIVE_UP_S = 1.0  # after SIGKILL: how long supervisors have to report
MPI_END_S = 1.0  # how long mpiexec may take to end after its ranks, and again after SIGTERM
LOOP_S = 1.0
# Open MPI, where the files of a killed job that had the same process id are still there.
PASSING_PROBLEM = "listener thread failed to start"


class Job:
    """One job. `run` may be called once."""

    def __init__(self, spec: JobSpec, means: Means) -> None:
        spread = means.spread
        self._spec = spec
        self._rank_environ = dict(means.ranks)
        self._sink = Sink(spec.num_ranks, prefix=spec.prefix, output_dir=spec.output_dir)
        self._threads = means.threads
        self._spread = spread
        self._far: FarSide | None = None
        if spread is None:
            self._server = ControlServer(spec.num_ranks)
        else:
            self._far = FarSide(spread.limit_s, wants_cpu=spec.timeout_s is not None)
            self._server = ControlServer(spec.num_ranks, spread.addresses, spread.limit_s)
        self._inbox = SignalInbox()
        of_agents = {} if spread is None else {AGENT_JOB: self._server.job}
        self._mpi = MpiProcess(
            means.command, {**means.environ, **self._server.environ(), **of_agents}
        )
        self._links: dict[int, Connection] = {}  # by descriptor, greeted or not
        self._ranks: dict[int, Connection] = {}
        self._started_s = time.monotonic()
        self._since_s = time.time()
        self._running = False
        self._reason: Reason | None = None
        self._start_problem = ""
        self._words_of_mpi: str | None = None  # to quote with it; None: all that there are
        self._kill_steps: list[tuple[float, int]] = []  # (when, signal), 0: give up
        self._begin_end_s: float | None = None
        self._given_up = False
        self._hurry = False  # the user wants the end now, with or without the rest of the output
        self._mpi_reads = True
        self._watch = HangWatch(spec.timeout_s) if spec.timeout_s is not None else None
        self._next_sample_s = 0.0

    def run(self, *, may_retry: bool = False) -> int | None:
        """Run the job and return its exit code; its last words are on stderr.

        With `may_retry`, None says that the MPI failed to start in a way that passes: nothing was
        run and nothing was said, and the same job may be tried again.
        """
        try:
            while not self._is_over():
                self._step()
            outcome = self._finish()
        finally:
            self._clean_up()
        if may_retry and self._start_problem and PASSING_PROBLEM in self._mpi.text():
            self._inbox.close()
            return None
        self._write_out(outcome.text())
        self._inbox.close()
        return outcome.exit_code

    def _clean_up(self) -> None:
        """Leave nothing: processes, files, shared memory, descriptors."""
        if self._far is not None:
            self._far.dismiss(self._links.values())
        for link in self._links.values():
            link.link.close()
        agent_tools.kill_job(self._server.job)
        self._mpi.close()
        if self._spread is not None:
            agent_tools.kill_job(self._server.job, AGENT_JOB)
        self._server.close()
        self._sink.close()
        agent_tools.remove_segments(self._since_s)

    # -- the loop ---------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        if self._given_up:
            return True
        if not self._running:
            return bool(self._start_problem)
        return all(rank.is_done or rank.lost_s is not None for rank in self._ranks.values())

    def _step(self) -> None:
        """Wait for one round of events and serve them."""
        poll = select.poll()
        handlers = self._handlers()
        for fd in handlers:
            poll.register(fd, select.POLLIN)
        for fd, link in self._links.items():
            if link.has_to_write:
                poll.register(fd, select.POLLOUT | (select.POLLIN if fd in handlers else 0))
        for stream in self._sink.waiting():
            poll.register(stream.fd, select.POLLOUT)
        for fd, events in poll.poll(self._wait_s() * 1e3):
            if fd in self._links and events & select.POLLOUT:
                self._links[fd].flush()
            if fd in handlers and events & ~select.POLLOUT:
                handlers[fd]()
        for stream in self._sink.waiting():
            stream.push()
        self._check()

    def _handlers(self) -> dict[int, Callable[[], None]]:
        """Return what to do when something can be read from a descriptor."""
        handlers: dict[int, Callable[[], None]] = {
            self._inbox.fd: self._on_signals,
            self._server.fd: self._on_connect,
        }
        if self._mpi_reads:
            handlers[self._mpi.output_fd] = self._on_mpi_output
        if self._mpi.status() is None:
            handlers[self._mpi.exit_fd] = lambda: None
        for fd in () if self._server.far is None else self._server.far.fds:
            handlers[fd] = partial(self._on_far_connect, fd)
        if self._far is not None and self._running and self._far.takes_input(self._ranks.get(0)):
            handlers[STDIN_FD] = self._on_input
        if not self._sink.is_full:
            for fd in self._links:
                handlers[fd] = partial(self._on_link, fd)
        return handlers

    def _wait_s(self) -> float:
        """Return how long the loop may sleep."""
        now_s = time.monotonic()
        due = [now_s + LOOP_S]
        if self._far is not None:
            due.append(self._far.due_s)
        if self._kill_steps:  # the job is ending: nothing else counts
            due.append(self._kill_steps[0][0])
            return max(0.0, min(due) - now_s)
        if self._begin_end_s is not None:
            due.append(self._begin_end_s)
        if not self._running:
            due.append(self._started_s + self._spec.start_timeout_s)
        if self._spec.time_limit_s is not None:
            due.append(self._started_s + self._spec.time_limit_s)
        if self._watch is not None and self._running:
            due.append(self._next_sample_s)
        return max(0.0, min(due) - now_s)

    def _check(self) -> None:
        """Do what is due: starting, limits, the steps of ending a job."""
        now_s = time.monotonic()
        if self._far is not None:
            reads = not self._sink.is_full
            self._lose(self._far.tick(self._links.values(), now_s, reads=reads), now_s)
        if not self._running and not self._start_problem:
            self._check_start(now_s)
        if self._sink.is_closed:
            self._stop(Reason(Stop.OUTPUT_CLOSED))
        limit_s = self._spec.time_limit_s
        if limit_s is not None and now_s >= self._started_s + limit_s:
            self._stop(Reason(Stop.TIME_LIMIT, limit_s))
        if self._running:
            self._check_moving(now_s)
            self._check_failed(now_s)
        while self._kill_steps and now_s >= self._kill_steps[0][0]:
            _, number = self._kill_steps.pop(0)
            if number:
                self._kill(number)
            else:
                self._given_up = True

    # -- starting ---------------------------------------------------------------------------------

    def _check_start(self, now_s: float) -> None:
        num_ranks = self._spec.num_ranks
        if len(self._ranks) == num_ranks:
            hosts = {rank: link.host for rank, link in self._ranks.items()}
            problem = None if self._spread is None else self._spread.misplaced(hosts)
            if problem is None:
                self._start_ranks()
            else:
                self._start_problem = problem
            return
        problems = [] if self._spread is None else self._spread.problems(self._mpi.text())
        if problems:
            self._start_problem = "\nblinkrun: ".join(problems)
            self._words_of_mpi = ""  # they say the same in more lines
        elif self._mpi.status() is not None:
            status = self._mpi.status()
            missing = self._missing()
            self._start_problem = f"mpiexec ended with exit code {status} before {missing} came up"
        elif now_s >= self._started_s + self._spec.start_timeout_s:
            limit = f"{self._spec.start_timeout_s:g} s (--start-timeout)"
            self._start_problem = f"{self._missing()} did not come up in {limit}"
            self._words_of_mpi = self._mpi.text()  # before it is told to end

    def _missing(self) -> str:
        """Return in words which ranks have not come up, and on which hosts."""
        missing = set(range(self._spec.num_ranks)) - set(self._ranks)
        if self._spread is None:
            return name_ranks(missing)
        hosts = ((place.name, missing & set(place.ranks)) for place in self._spread.placements)
        return ", ".join(f"{name_ranks(ranks)} on host {name}" for name, ranks in hosts if ranks)

    def _start_ranks(self) -> None:
        self._running = True
        self._next_sample_s = time.monotonic()
        meeting = self._meeting_point()
        for rank, link in self._ranks.items():
            order: dict[str, object] = {
                "job": self._server.job,
                "argv": list(self._spec.program.argv),
                "environ": {**self._rank_environ, **meeting},
                "threads": (self._threads, self._spec.num_ranks),
            }
            if self._spread is not None:
                order.update(self._spread.of_rank(rank, order, is_far=link.is_far))
            link.go(order, STDIN_FD if rank == 0 else None)

    def _meeting_point(self) -> dict[str, str]:
        """Return where the ranks of a job for torch.distributed meet, if they are on many hosts."""
        if self._spread is None or env.DDP not in self._spec.settings:
            return {}
        address, port = meeting_point(self._ranks.get(0), self._spread.addresses)
        found = {"MASTER_ADDR": address}
        if port is not None:
            found["MASTER_PORT"] = str(port)
        return {name: value for name, value in found.items() if name not in self._spec.environ}

    # -- events -----------------------------------------------------------------------------------

    def _on_connect(self) -> None:
        connection = self._server.accept()
        if connection is not None:
            self._links[connection.fd] = connection

    def _on_far_connect(self, fd: int) -> None:
        if self._server.far is None:
            return
        connection = self._server.far.accept(fd, len(self._links))
        if connection is not None:
            self._links[connection.fd] = connection

    def _on_input(self) -> None:
        if self._far is not None:
            self._far.pass_input(self._ranks[0])

    def _on_link(self, fd: int) -> None:
        if fd not in self._links:
            return  # dropped in this very round
        link = self._links[fd]
        frames = link.read()
        if frames is None:
            self._drop(link)
            return
        for kind, body in frames:
            if link.rank < 0:
                if not self._greet(link, kind, body):
                    return
            elif kind in (agent_tools.STDOUT, agent_tools.STDERR):
                self._sink.take(link.rank, kind, body)
            else:
                link.note(kind, body, time.monotonic())

    def _greet(self, link: Connection, kind: int, body: bytes) -> bool:
        """Take a supervisor in; whether it belongs here."""
        if not self._server.greet(link, kind, body):
            self._drop(link)
            return False
        num_ranks = self._spec.num_ranks
        if link.rank < 0:
            self._start_problem = "mpiexec gave its ranks no number; is it the MPI that it says?"
        elif link.size != num_ranks or link.rank in self._ranks:
            self._start_problem = (
                f"mpiexec started rank {link.rank} of {link.size} where {num_ranks} ranks are"
                " wanted; the MPI's own settings or a batch system interfere"
            )
        self._ranks[link.rank] = link
        return True

    def _drop(self, link: Connection) -> None:
        del self._links[link.fd]
        link.link.close()
        if link.rank >= 0 and not link.is_done:
            link.lost_s = time.monotonic()
            if not self._running:
                del self._ranks[link.rank]

    def _lose(self, silent: Sequence[FarConnection], now_s: float) -> None:
        for link in silent:
            link.silent_s = now_s - link.heard_s
            self._drop(link)

    def _on_mpi_output(self) -> None:
        self._mpi_reads = self._mpi.read()

    def _on_signals(self) -> None:
        for number in self._inbox.read():
            if self._reason is not None and self._reason.stop is Stop.SIGNAL:
                self._kill(signal.SIGKILL)  # a second time: at once
                self._given_up = self._hurry = True
            elif not self._running:
                self._reason = Reason(Stop.SIGNAL, number)
                self._given_up = True
            else:
                self._stop(Reason(Stop.SIGNAL, number))

    # -- ending -----------------------------------------------------------------------------------

    def _check_failed(self, now_s: float) -> None:
        """See whether the job has failed, and begin to end it."""
        if self._kill_steps or self._reason is not None:
            return
        records = [link.record(()) for link in self._ranks.values()]
        failed = [record for record in records if record.failed_s is not None]
        is_told = any(record.was_told for record in records)
        is_lost = any(record.lost_s is not None for record in records)
        if any(not record.is_secondary for record in failed) or is_lost:
            self._end(now_s, TERM_GRACE_S)
        elif failed or is_told or self._mpi.status() is not None:
            if self._begin_end_s is None:
                self._begin_end_s = now_s + SETTLE_S + (FAR_SETTLE_S if self._far else 0.0)
                if self._far is not None:
                    self._far.probe(self._links.values(), now_s)
            elif now_s >= self._begin_end_s:
                if self._lacks_answers(now_s, self._begin_end_s + PROBE_S):
                    return
                self._begin_end_s = None
                if not failed and not is_told:
                    self._reason = Reason(Stop.MPI_ENDED, self._mpi.status() or 0)
                self._end(now_s, TERM_GRACE_S)

    def _lacks_answers(self, now_s: float, deadline_s: float) -> bool:
        """Whether a host does not answer that may explain it all; it is lost after the deadline."""
        silent = [] if self._far is None else self._far.unanswered(self._links.values())
        if silent and now_s >= deadline_s:
            self._lose(silent, now_s)
        return bool(silent)

    def _check_moving(self, now_s: float) -> None:
        if self._watch is None or self._reason is not None or now_s < self._next_sample_s:
            return
        self._next_sample_s = now_s + self._watch.interval_s
        running = [link for link in self._ranks.values() if link.pid and link.code is None]
        cpu_s = group_cpu_seconds({link.pid for link in running if not link.is_far})
        cpu_s += sum(link.cpu_s for link in running)
        if self._watch.is_hung(now_s, cpu_s, self._sink.num_chunks):
            self._stop(Reason(Stop.HUNG, self._spec.timeout_s or 0))

    def _stop(self, reason: Reason) -> None:
        """End the job for `reason`, unless it is ending already."""
        if self._reason is not None or self._kill_steps:
            return
        self._reason = reason
        if not self._running:
            self._given_up = True
        grace_s = SIGNAL_GRACE_S if reason.stop is Stop.SIGNAL else TERM_GRACE_S
        self._end(time.monotonic(), grace_s)

    def _end(self, now_s: float, grace_s: float) -> None:
        self._kill_steps = [
            (now_s, signal.SIGTERM),
            (now_s + grace_s, signal.SIGKILL),
            (now_s + grace_s + GIVE_UP_S, 0),
        ]

    def _kill(self, number: int) -> None:
        for link in self._ranks.values():
            is_leaving = link.report is not None and number != signal.SIGKILL
            if link.lost_s is None and link.code is None and not is_leaving:
                link.kill(number)
        if number == signal.SIGKILL:
            agent_tools.kill_job(self._server.job)

    def _finish(self) -> Outcome:
        """Wait for mpiexec, end what is left, and decide what to say."""
        # It sees its ranks' end and then removes its files; a signal too early keeps it from that.
        steps = [time.monotonic() + MPI_END_S, time.monotonic() + 2 * MPI_END_S]
        is_silent = any(link.silent_s is not None for link in self._ranks.values())
        if not self._running or is_silent:  # it would wait for its helper on a host that is cut off
            self._mpi.signal(signal.SIGTERM)
            del steps[0]
        while self._mpi.status() is None and steps:
            if time.monotonic() > steps[0]:
                del steps[0]
                self._mpi.signal(signal.SIGTERM)
            poll = select.poll()
            poll.register(self._mpi.exit_fd, select.POLLIN)
            if self._mpi_reads:
                poll.register(self._mpi.output_fd, select.POLLIN)
            poll.register(self._inbox.fd, select.POLLIN)
            if self._far is not None:
                self._far.tick(self._links.values(), time.monotonic(), reads=False)
            for fd, _ in poll.poll(LOOP_S * 1e2):
                if fd == self._mpi.output_fd:
                    self._on_mpi_output()
                elif fd == self._inbox.fd and self._inbox.read():
                    self._hurry = True
                    steps = []
        while self._mpi_reads and self._mpi.status() is not None:
            before = self._mpi.text()
            self._on_mpi_output()
            if self._mpi.text() == before:
                break
        return self._outcome()

    def _outcome(self) -> Outcome:
        if self._start_problem:
            words = self._mpi.text() if self._words_of_mpi is None else self._words_of_mpi
            return Outcome(EXIT_FAILED, _with_words_of_mpi(self._start_problem, words))
        records = [
            self._ranks[rank].record(self._sink.tails[rank].lines()) for rank in sorted(self._ranks)
        ]
        if self._spec.verbose and self._mpi.text():
            _say("".join(f"mpiexec: {line}\n" for line in self._mpi.text().splitlines()))
        return decide(records, self._reason, self._mpi.text())

    def _write_out(self, last_words: str) -> None:
        """Write what is left of the ranks' output and then `last_words`; a signal cuts it short."""
        while waiting := self._sink.waiting():
            if self._hurry or self._inbox.read():
                return
            for stream in waiting:
                stream.push(wait_s=0.1)
        _say(last_words)


def _say(text: str) -> None:
    """Write to stderr; where nobody reads it, the exit code says enough."""
    data = text.encode(errors="replace")
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(2, data) :]


def _with_words_of_mpi(problem: str, text: str) -> str:
    lines = [line.rstrip() for line in text.splitlines()]
    words = [line for line in lines if line.strip("-=* ")]
    if not words:
        return problem
    return f"{problem}; it said:\n" + "\n".join(f"    {line}" for line in words[-20:])
