"""The forms that a gradient may have: none, dense, sparse; and the order in which they came."""

from __future__ import annotations

from collections.abc import Sequence

import torch

ABSENT, DENSE = 0, 1  # DENSE + n: sparse in its first n dimensions


def form_of(grad: torch.Tensor | None) -> int:
    """Return the form of a gradient, as its flag says it.

    >>> [form_of(grad) for grad in (None, torch.ones(2), torch.eye(2).to_sparse(1))]
    [0, 1, 2]
    """
    if grad is None:
        return ABSENT
    return DENSE if grad.layout == torch.strided else DENSE + grad.sparse_dim()


def dense(grad: torch.Tensor) -> torch.Tensor:
    """Return the values of a gradient of any form, out of its graph."""
    return grad.detach() if grad.layout == torch.strided else grad.detach().to_dense()


def sparse(param: torch.Tensor, sparse_dim: int) -> torch.Tensor:
    """Return the gradient of `param` with `sparse_dim` sparse dimensions; without values if none.

    >>> sparse(torch.nn.Parameter(torch.ones(3, 2)), 1)._nnz()
    0
    """
    if param.grad is None:
        there = param.device
        indices = torch.empty(sparse_dim, 0, dtype=torch.int64, device=there)
        values = torch.empty(0, *param.shape[sparse_dim:], dtype=param.dtype, device=there)
        return torch.sparse_coo_tensor(indices, values, param.shape, check_invariants=False)
    return param.grad if param.grad.is_sparse else param.grad.to_sparse(sparse_dim)


def by_order(indices: Sequence[int], order: Sequence[int]) -> list[int]:
    """Return `indices` by their place in `order`; those without one, 0, last, the highest first.

    >>> by_order([0, 1, 2, 3], [0, 2, 1, 0])
    [2, 1, 3, 0]
    """
    return sorted(indices, key=lambda index: (order[index] == 0, order[index], -index))
