"""`DistributedOptimizer`: an optimizer that steps with the gradients of all ranks."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from blinkrun import engine
from blinkrun.adapter.process_sets import ProcessSet, global_process_set
from blinkrun.engine.request import ADASUM
from blinkrun.errors import UsageError
from blinkrun.torch.adasum_optimizer import AdasumMixin
from blinkrun.torch.amp import teach_grad_scaler
from blinkrun.torch.clipping import teach_clipping
from blinkrun.torch.compression import Compression
from blinkrun.torch.settings import Arguments, Settings, names_by_identity
from blinkrun.torch.wrapped import DistributedMixin, wrap
from blinkrun.types import Op


def DistributedOptimizer(  # noqa: N802, PLR0913, PLR0917 - Horovod's name and order
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Op.AVERAGE,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    *,
    bucket_bytes: int | None = None,
    overlap: str | None = None,
    check_every: int | None = None,
) -> Any:
    """Return `optimizer`, made to step with the gradients of all ranks.

    Every rank of the process set calls it, with the same parameters. It is the object that was
    given, whose class is now made over the one that it had: ``isinstance``, ``state_dict``,
    ``param_groups``, learning rate schedulers (made before or after) and ``torch.amp.GradScaler``
    work as before, and what the optimizer has learned so far stays.

    As backward makes gradients they are copied into buckets in memory that all ranks of a host
    see; ``step()`` returns when each bucket has been reduced and the parameters updated. From
    then on ``param.grad`` is a view of its bucket.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Any optimizer over parameters that are float16, bfloat16, float32 or float64, all on the CPU
        or all on one CUDA device.
    named_parameters : iterable of (str, torch.Tensor), optional
        ``model.named_parameters()``: names for messages. Must name every parameter of
        `optimizer`; may name others.
    compression : compressor, default Compression.none
        How gradients travel: `Compression.fp16` and `Compression.bf16` halve the bytes of float32,
        and buckets are of that type. A class of one's own with ``compress`` and ``decompress``
        must keep the number of elements.
    backward_passes_per_step : int, default 1
        Backward passes whose gradients are added up here before they are reduced. They are not
        divided by their number: divide the loss.
    op : default Average
        `Average` steps as one process does on the joined batch, if the loss is a mean over it;
        `Sum` if it is a sum. With `Adasum` each rank steps by its own gradients, and what the
        steps have changed is combined by Adasum.
    gradient_predivide_factor : float, default 1.0
        With `Average`: gradients are divided by it before they are added up, and the sum is
        multiplied by it over the number of ranks. For narrow types whose sums could overflow.
    num_groups : int
        Horovod's old name for a number of `groups`.
    groups : int or list of lists of torch.Tensor, optional
        Gradients of a group are reduced together, when the last is ready. A number divides the
        parameters into as many groups; those that no list names are bucketed as without groups.
    sparse_as_dense : bool, default False
        Whether sparse gradients are reduced as dense ones; otherwise indices and values of all
        ranks are gathered. ``param.grad`` is sparse afterwards, either way.
    process_set : ProcessSet
        Ranks among which gradients are reduced. On other ranks `optimizer` steps by itself.
    bucket_bytes : int, optional
        Largest bucket; environment variable ``BLINKRUN_BUCKET_BYTES`` otherwise, or 25 MiB.
    overlap : {"auto", "on", "off"}, optional
        Whether a helper thread reduces full buckets while backward goes on; environment variable
        ``BLINKRUN_OVERLAP`` otherwise, or "auto": if the ranks leave cores idle.
    check_every : int, optional
        Steps between checks that all ranks have the same parameters, bit by bit; 0 for never.
        Environment variable ``BLINKRUN_CHECK_PARAMETERS`` otherwise, or 0.

    Raises
    ------
    UsageError
        If a name comes twice or a parameter has none, if the optimizer or one of its parameters
        is wrapped already, or if an argument is none of those above. A ValueError.
    InvalidBufferError
        If parameters are in several places, on neither the CPU nor a CUDA device, or of another
        dtype.
    MismatchError
        If the ranks have different parameters or arguments; names a rank and the first one that
        differs.
    NotInitializedError
        Before ``init()``.

    Notes
    -----
    ``synchronize()`` waits for the gradients without a step, for whatever needs their global
    values; the ``step()`` that follows does not reduce again. ``step()`` inside ``with
    optimizer.skip_synchronize():`` never reduces. ``torch.nn.utils.clip_grad_norm_`` and
    ``clip_grad_value_`` need neither: they reduce first. ``with optimizer.no_sync():`` accumulates
    gradients on this rank.

    A closure given to ``step`` (LBFGS) is a forward and a backward pass; each call's gradients and
    loss are reduced before the optimizer sees them, so all ranks take the same decisions.

    Gradients of parameters that only some ranks reach count as zero on the others; where no rank
    has one, ``param.grad`` stays None. A parameter that was frozen takes part from the step in
    which any rank has a gradient of it.
    """
    if num_groups:
        warnings.warn("num_groups is called groups now", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    engine.current()
    if isinstance(optimizer, DistributedMixin):
        raise UsageError("this optimizer is wrapped by DistributedOptimizer already")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(f"DistributedOptimizer wraps a torch optimizer, got {type(optimizer)}")
    arguments = Arguments(
        names=names_by_identity(named_parameters),
        compression=compression,
        backward_passes_per_step=backward_passes_per_step,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        groups=groups,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
        bucket_bytes=bucket_bytes,
        overlap=overlap,
        check_every=check_every,
    )
    teach_grad_scaler(DistributedMixin)
    teach_clipping()
    return wrap(optimizer, Settings(arguments), AdasumMixin if op == ADASUM else DistributedMixin)
