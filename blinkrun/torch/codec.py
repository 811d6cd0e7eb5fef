"""How gradients get into buckets and back: as they are, in another dtype, or by a compressor."""

from __future__ import annotations

from typing import Any

import torch

from blinkrun.errors import UsageError
from blinkrun.torch.compression import Compression

_CASTS = (Compression.none, Compression.fp16, Compression.bf16)


class Codec:
    """Writes gradients into views of buckets and reads the results.

    A compressor is a class with static methods ``compress(tensor) -> (tensor, context)`` and
    ``decompress(tensor, context) -> tensor``, as Horovod has it. One that does no more than change
    the dtype costs a conversion in each direction; what others return must have as many elements.

    Parameters
    ----------
    compression : compressor or None
        None leaves gradients as they are.
    """

    def __init__(self, compression: Any = None) -> None:
        self._compression = None if compression is Compression.none else compression
        self._contexts: dict[int, Any] = {}
        self._is_cast = compression is None or compression in _CASTS

    def wire_dtype(self, name: str, param: torch.Tensor) -> torch.dtype:
        """Return the dtype in which gradients of `param` travel.

        Raises
        ------
        UsageError
            If the compressor does not give a dense tensor with as many elements.
        """
        if self._compression is None:
            return param.dtype
        packed, _ = self._compression.compress(torch.ones(7, dtype=param.dtype))
        if not isinstance(packed, torch.Tensor) or packed.numel() != 7 or packed.is_sparse:
            raise UsageError(
                f"compression {self._compression!r} changes the number of elements of parameter "
                f"'{name}'; a compressor may change dtype and values"
            )
        return packed.dtype

    def keeps(self, grad: torch.Tensor, view: torch.Tensor) -> bool:
        """Whether `grad` and the `view` of its bucket hold the same, so either may be the other."""
        return self._is_cast and grad.dtype == view.dtype

    def put(self, index: int, grad: torch.Tensor, view: torch.Tensor) -> None:
        """Write the gradient of parameter `index` into its bucket."""
        if not self._is_cast:
            grad, self._contexts[index] = self._compression.compress(grad)
        view.copy_(grad.reshape(view.shape))

    def take(self, index: int, view: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Return what lies in the bucket, as a gradient for the parameter `like`."""
        if self._is_cast:
            return view.to(like.dtype)
        if index not in self._contexts:  # a gradient of other ranks only
            self._contexts[index] = self._compression.compress(torch.zeros_like(like))[1]
        return self._compression.decompress(view, self._contexts[index]).reshape(like.shape)
