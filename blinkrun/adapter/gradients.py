"""The gradients of a model, reduced over the ranks once a step, in buckets that lie in the arena.

Nothing is exchanged beforehand: every request carries a digest of what this rank takes for common.
Where ranks differ, in variables, shapes or arguments, the engine refuses the first bucket on all of
them, and only then do they tell each other what they have, to say which gradient it is.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from blinkrun.adapter.bucket_sizes import choose_bucket_bytes, choose_direct_bytes
from blinkrun.adapter.gradient_plan import Agreement, Facts, Gradient, first_difference, kinds
from blinkrun.adapter.gradient_steps import (
    Bucket,
    Started,
    Step,
    Value,
    as_array,
    is_finite,
)
from blinkrun.adapter.leases import Array, Loan, Pool
from blinkrun.adapter.process_sets import ProcessSet, global_process_set, number_of
from blinkrun.buffers import View, view
from blinkrun.engine import engine as engines
from blinkrun.engine import objects
from blinkrun.engine.bucket import GradientSpec, plan_buckets
from blinkrun.engine.engine import Engine
from blinkrun.engine.handle import Handle, Part
from blinkrun.engine.request import ADASUM, CUDA, Kind, Member, Request
from blinkrun.errors import (
    BlinkrunError,
    InvalidBufferError,
    MismatchError,
    NonFiniteError,
    UsageError,
)
from blinkrun.types import DType, Op, Rank

__all__ = ["Gradient", "Gradients", "Started"]

# The last request of each name, by process set: whoever uses it next lets that one end first.
_under_way: WeakKeyDictionary[Engine, dict[tuple[int, str], Handle]] = WeakKeyDictionary()


class Gradients:
    """The gradients of one set of variables, reduced over the ranks of a process set once a step.

    Every rank of the set makes one with the same arguments, at any time: making it exchanges
    nothing. A gradient is copied once, into its bucket, where the allreduce runs in place; one of 4
    MiB or more is read where it is, if it is contiguous. All methods may be called by any thread.

    Parameters
    ----------
    gradients : sequence of Gradient
        The dense ones, in the order of the variables; what is ready first comes last.
    owner : str
        What the names of the requests begin with: the same on all ranks, and used by nothing else
        that is reduced at the same time.
    process_set : ProcessSet
        Whose ranks they are; registered. A rank that is not among them is alone.
    op : int
        `Average`, `Sum` or `Adasum`, which combines each gradient by itself.
    scales : (float, float)
        Factors before and after.
    bucket_bytes : int, optional
        Largest bucket. Default: BLINKRUN_BUCKET_BYTES, else 25 MiB.
    groups : sequence of sequences of int
        Gradients, by position, that share a bucket for each dtype whatever their size.
    facts : sequence of (str, str), optional
        Names and descriptions of everything that ranks must have in common, in the order of the
        variables. Default: those of `gradients`.
    arguments : sequence of (str, str)
        Further arguments that ranks must have in common, by name.
    requests : sequence of str
        Names of requests that belong to a step beside those of the buckets. If ranks differ, those
        that a rank lacks are ended on the others.
    current : callable
        Gives the engine.

    Attributes
    ----------
    is_alone : bool
        Whether there is nobody to reduce with; then values come back as they are.
    buckets : tuple of tuples of int
        Which gradients each bucket has, in the order in which they are expected to be ready. There
        is one at least: ranks without dense gradients compare what they have by an empty one.

    Raises
    ------
    ProcessSetError
        If the process set is not registered.
    NotInitializedError
        Before ``init()``.
    """

    def __init__(  # noqa: PLR0913 - keyword-only but for the first
        self,
        gradients: Sequence[Gradient],
        *,
        owner: str,
        process_set: ProcessSet = global_process_set,
        op: int = Op.AVERAGE,
        scales: tuple[float, float] = (1.0, 1.0),
        bucket_bytes: int | None = None,
        groups: Sequence[Sequence[int]] = (),
        facts: Sequence[tuple[str, str]] | None = None,
        arguments: Sequence[tuple[str, str]] = (),
        requests: Sequence[str] = (),
        current: Callable[[], Engine] = engines.current,
    ) -> None:
        self.gradients = tuple(gradients)
        self.owner = owner
        self.process_set = process_set
        self.op = op
        self.scales = scales
        self._bucket_bytes = 1 if op == ADASUM else choose_bucket_bytes(bucket_bytes)
        self._groups = () if op == ADASUM else tuple(tuple(group) for group in groups)
        self._facts: Facts = kinds(self.gradients) if facts is None else tuple(facts)
        self._further_arguments: Facts = tuple(arguments)
        self._further = tuple(requests)
        self._current = current
        self._lock = threading.RLock()
        self._made_for: Engine | None = None
        self._engine()

    # ---- reducing --------------------------------------------------------------------------------

    def reduce(self, values: Sequence[Value]) -> list[Array]:
        """Return all gradients reduced; every rank of the set calls it.

        Parameters
        ----------
        values : sequence of arrays or Views
            This rank's gradients, in the order of `gradients`.

        Returns
        -------
        list of arrays
            Shaped as the gradients, in the arena, aligned to 64 bytes. The memory is used again
            when none of them is held any more.

        Raises
        ------
        MismatchError
            If ranks differ in variables, shapes or arguments; names ranks and the first difference.
        NonFiniteError
            If `--check-nan` is on and a rank has given NaN or infinity; names the gradient.
        UsageError
            If there are more or fewer values than gradients, or one has another shape or dtype.
        """
        return self.begin_all(values, sync=True).wait()

    def reduce_on_device(self, values: Sequence[View], targets: Sequence[View]) -> bool:
        """Reduce all gradients, which are on a device, in one request; every rank calls it.

        The stream of the first one goes on after the results; no thread waits for the device.

        Parameters
        ----------
        values, targets : sequence of Views
            This rank's gradients, in the order of `gradients`, and where results go.

        Returns
        -------
        bool
            False if there is nobody to reduce with: then nothing is written.

        Raises
        ------
        MismatchError, NonFiniteError
            As from `reduce`; the latter without the name of the gradient.
        """
        engine = self._engine()
        if self.is_alone:
            return False
        request = Request(
            self._buckets[0].name,
            Kind.ALLREDUCE,
            tuple(Member(value.dtype, value.shape) for value in values),
            process_set=self._number,
            op=self.op,
            scales=self.scales,
            device=self._agreement.device(CUDA),
        )
        handle = engine.submit(request, list(map(Part, values, targets)), sync=True)
        try:
            handle.wait()
        except MismatchError as err:
            if self._is_between_plans(err):
                mine = self._agreement._replace(requests=(request.name,))  # no other buckets
                raise self._difference(err, mine) from None
            raise
        handle.wait_on(values[0].stream)
        return True

    def begin_all(self, values: Sequence[Value], *, sync: bool = False) -> Started:
        """Begin the reduction of all gradients in one message; never waits for other ranks.

        Parameters
        ----------
        values : sequence of arrays or Views
            In the order of `gradients`; what is read in place must not change before the end.
        sync : bool
            The caller waits at once: no other thread needs to do the work meanwhile.
        """
        if len(values) != len(self.gradients):
            raise UsageError(
                f"'{self.owner}' reduces {len(self.gradients)} gradients, got {len(values)}"
            )
        self._engine()
        chosen = [(bucket, [values[g] for g in bucket.members]) for bucket in self._buckets]
        return self._begin(chosen, order=self._order, sync=sync)

    def begin(self, bucket: int, values: Sequence[Value]) -> Started:
        """Begin the reduction of one bucket; never waits for other ranks.

        Parameters
        ----------
        bucket : int
            Its place in `buckets`. Every bucket has its turn once a step, in any order.
        values : sequence of arrays or Views
            Its gradients, in the order of ``buckets[bucket]``.
        """
        self._engine()
        chosen = self._buckets[bucket]
        if len(values) != len(chosen.members):
            raise UsageError(
                f"bucket {bucket} of '{self.owner}' has {len(chosen.members)} gradients, got "
                f"{len(values)}"
            )
        return self._begin([(chosen, values)], order=range(len(values)), sync=False)

    def together(self, started: Sequence[Started]) -> Started:
        """Return what was begun bucket by bucket as one, with results in the order of `gradients`.

        Every bucket of a step is in it once. What goes wrong is explained better so.
        """
        if self.is_alone:
            given = [array for each in started for array in each.wait()]
            return Started(self._explained, [], self._order, given)
        steps = [step for each in started for step in each.take_steps()]
        return Started(
            self._explained, steps, [g for step in steps for g in step.bucket.members], []
        )

    def _begin(
        self,
        chosen: Sequence[tuple[Bucket, Sequence[Value]]],
        *,
        order: Sequence[int],
        sync: bool,
    ) -> Started:
        with self._lock:
            engine = self._engine()
            if self.is_alone:
                return Started(
                    self._explained, [], order, [as_array(v) for _, vs in chosen for v in vs]
                )
            keeps_values = engine.settings.check_nan  # to say which it was
            calls: list[tuple[Request, list[Part]]] = []
            loans: list[Loan] = []
            for bucket, values in chosen:
                self._let_end(bucket)
                loans.append(bucket.pool.lend())
                calls.append((bucket.request, [self._part(bucket, values, loans[-1])]))
            handles = engine.submit_all(calls, sync=sync)
            steps = []
            for (bucket, values), loan, handle in zip(chosen, loans, handles, strict=True):
                self._under_way[self._number, bucket.name] = handle
                steps.append(Step(bucket, loan, handle, values if keeps_values else ()))
        return Started(self._explained, steps, order, [])

    def _let_end(self, bucket: Bucket) -> None:
        """Wait for the last reduction of a bucket, whose result nobody has waited for."""
        before = self._under_way.pop((self._number, bucket.name), None)
        if before is not None and not before.done():
            with contextlib.suppress(BlinkrunError):  # it is for whoever holds it to tell
                before.wait()

    def _part(self, bucket: Bucket, values: Sequence[Value], loan: Loan) -> Part:
        """Return what is reduced to where, having copied what is not read in place."""
        for number, value, piece in zip(bucket.members, values, loan.block.pieces, strict=True):
            if isinstance(value, View):
                is_right = (value.dtype, value.shape) == self.gradients[number][1:]
            else:
                is_right = value.shape == piece.shape and value.dtype == piece.dtype
            if not is_right:
                raise self._changed(number, value)
            if bucket.is_direct and (isinstance(value, View) or value.flags.c_contiguous):
                source = value if isinstance(value, View) else view(value, bucket.name)
                flat = View(
                    source.pointer, source.count, (source.count,), source.dtype, False, value
                )
                return Part(flat, loan.view)
            np.copyto(piece, as_array(value))
        return Part(loan.view, loan.view)

    def _changed(self, number: int, value: Value) -> UsageError:
        known = self.gradients[number]
        dtype = value.dtype.label if isinstance(value, View) else value.dtype
        return UsageError(
            f"gradient '{known.name}' is {dtype} {tuple(value.shape)} by now and was "
            f"{known.describe()} when '{self.owner}' was made"
        )

    # ---- where ranks differ ----------------------------------------------------------------------

    def _explained(self, bucket: Bucket, err: Exception, values: Sequence[Value]) -> Exception:
        """Return the first error of a step as one about gradients.

        Every rank of the set that has got the error calls this, once.

        Parameters
        ----------
        bucket : Bucket
            Whose error it is.
        values : sequence of arrays or Views
            What this rank has given, as far as it is known.
        """
        with contextlib.suppress(BlinkrunError):  # then the error itself must do
            if isinstance(err, MismatchError) and self._is_between_plans(err):
                return self._difference(err, self._agreement)
            if isinstance(err, NonFiniteError):
                return self._traced(bucket, err, values)
        return err

    def _traced(
        self, bucket: Bucket, err: NonFiniteError, values: Sequence[Value]
    ) -> NonFiniteError:
        """Return an error about a bucket as one about a gradient."""
        engine, found = self._engine(), []
        if engine.world.rank == err.rank:
            pairs = zip(bucket.members, values, strict=True)
            found = [self.gradients[g].name for g, value in pairs if not is_finite(value)]
        everyone = objects.allgather_object(engine, found, self._number, f"{bucket.name}.blame")
        names = [name for each in everyone for name in each]
        if not names:
            return err
        others = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
        return NonFiniteError(
            f"rank {err.rank}: gradient '{names[0]}'{others} holds NaN or infinity, which "
            "--check-nan (BLINKRUN_CHECK_NAN) refuses",
            names[0],
            err.rank,
        )

    def _is_between_plans(self, err: MismatchError) -> bool:
        """Whether all ranks have called reductions of gradients, which is for them to sort out."""
        calls = err.calls.values()
        return len(err.calls) == len(self._ranks) and all(
            call.startswith(f"{Kind.ALLREDUCE.label} '{self._buckets[0].name}'") for call in calls
        )

    def _difference(self, err: MismatchError, mine: Agreement) -> Exception:
        engine = self._engine()
        given = objects.allgather_object(engine, mine, self._number, f"{self.owner}.differences")
        everyone: dict[Rank, Agreement] = dict(zip(self._ranks, given, strict=True))
        wanted = sorted({name for each in given for name in each.requests} - {*mine.requests})
        for name in wanted:  # others wait for what this rank will never ask for
            stand_in = Request(name, Kind.BARRIER, process_set=self._number)
            with contextlib.suppress(MismatchError):
                engine.submit(stand_in, (), sync=True).wait()
        text = first_difference(everyone)
        if text is None:
            return err
        return MismatchError(
            text, {r: f"{len(e.gradients)} gradients" for r, e in everyone.items()}
        )

    # ---- set up ----------------------------------------------------------------------------------

    def _engine(self) -> Engine:
        """Return the engine; everything is made anew if the job was left and joined again."""
        engine = self._current()
        if engine is not self._made_for:
            with self._lock:
                if engine is not self._made_for:
                    self._set_up(engine)
        return engine

    def _set_up(self, engine: Engine) -> None:
        self._number = number_of(self.process_set)
        members = engine.process_sets()[self._number]
        self._ranks: tuple[Rank, ...] = members if engine.world.rank in members else ()
        self.is_alone = len(self._ranks) < 2
        direct_bytes = None
        if not self.is_alone and self.op != ADASUM:
            direct_bytes = choose_direct_bytes(engine.communicator(self._number))
        self._under_way = _under_way.setdefault(engine, {})
        layout = plan_buckets(
            [GradientSpec(g.name, g.dtype, _count(g.shape)) for g in self.gradients],
            range(len(self.gradients))[::-1],
            self._bucket_bytes,
            direct_bytes,
            self._groups,
        )
        names = [f"{self.owner}.bucket{k}" for k in range(max(1, len(layout.buckets)))]
        self._agreement = Agreement(
            self._facts, self._arguments(direct_bytes), (*names, *self._further)
        )
        device = self._agreement.device()
        self._buckets = [
            self._bucket(engine, name, device, bucket.slots, bucket.is_direct)
            for name, bucket in zip(names, layout.buckets, strict=False)
        ] or [self._bucket(engine, names[0], device, (), False)]
        self.buckets = tuple(bucket.members for bucket in self._buckets)
        self._order = [gradient for members in self.buckets for gradient in members]
        self._made_for = engine

    def _arguments(self, direct_bytes: int | None) -> Facts:
        op = "Adasum" if self.op == ADASUM else Op(self.op).name.title()
        return (
            ("op", op),
            ("scale factors", str(tuple(map(float, self.scales)))),
            ("bucket_bytes", str(self._bucket_bytes)),
            ("groups", str([list(group) for group in self._groups])),
            ("direct_bytes", str(direct_bytes)),
            *self._further_arguments,
        )

    def _bucket(
        self, engine: Engine, name: str, device: str, slots: Sequence[Any], is_direct: bool
    ) -> Bucket:
        dtype = self.gradients[slots[0].gradient].dtype if slots else DType.FLOAT32
        count = slots[-1].start + slots[-1].num_elements if slots else 0
        request = Request(
            name,
            Kind.ALLREDUCE,
            (Member(dtype, (count,)),),
            process_set=self._number,
            op=self.op,
            scales=self.scales,
            device=device,
        )
        number = self._number
        pieces = [(s.start * dtype.itemsize, self.gradients[s.gradient].shape) for s in slots]
        pool = Pool(dtype, count, pieces, lambda size: engine.empty_bytes(size, number))
        return Bucket(name, tuple(s.gradient for s in slots), is_direct, request, pool)


def _count(shape: Sequence[int]) -> int:
    count = 1
    for length in shape:
        if length < 0:
            raise InvalidBufferError(f"a gradient has shape {tuple(shape)}, need known lengths")
        count *= length
    return count
