"""A custom operator, registered with torch: the kernel, its fake and its gradients.

The candidate is the operator itself: its schema must name the keywords that are promised.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import conformance


@torch.library.custom_op("conformance_example::attention", mutates_args=())
def attention(query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False) -> Tensor:
    """Attend ``[B, H, Lq, D]`` to ``[B, H, Lk, D]`` and ``[B, H, Lk, Dv]``.

    Raises ValueError for values of another length than the keys.
    """
    if key.shape[2] != value.shape[2]:
        msg = f"there are {key.shape[2]} keys and {value.shape[2]} values"
        raise ValueError(msg)
    return _weights(query, key, causal=causal) @ value


@attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False) -> Tensor:
    """The shape of the answer, without numbers."""
    del key, causal
    return query.new_empty((*query.shape[:-1], value.shape[-1]))


def _weights(query: Tensor, key: Tensor, *, causal: bool) -> Tensor:
    """The softmax over the keys that a query sees; zeros where it sees none."""
    logits: Tensor = query @ key.mT * float(query.shape[-1]) ** -0.5
    if not causal:
        return logits.softmax(dim=-1)
    shape = logits.shape[-2:]
    seen = torch.ones(shape, dtype=torch.bool, device=query.device).tril(shape[1] - shape[0])
    weights = logits.masked_fill(~seen, -torch.inf).softmax(dim=-1)
    return weights.masked_fill(~seen, 0.0)


def _setup(
    ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], keyword_only_inputs: Any, output: Tensor
) -> None:
    """Keep what the gradients need."""
    del output
    ctx.save_for_backward(*inputs)
    ctx.causal = keyword_only_inputs["causal"]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value; the weights are computed again."""
    query, key, value = ctx.saved_tensors
    weights = _weights(query, key, causal=ctx.causal)
    of_weights = gradient @ value.mT
    average = (weights * of_weights).sum(dim=-1, keepdim=True)
    of_logits = weights * (of_weights - average) * query.shape[-1] ** -0.5
    return of_logits @ key, of_logits.mT @ query, weights.mT @ gradient


attention.register_autograd(_backward, setup_context=_setup)

operator_attention = conformance.core(
    name="operator_attention",
    causal="bottom-right",
    empty_rows="zeros",
    dtypes=["float32", "float64"],
)(attention)
