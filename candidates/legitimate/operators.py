"""Operators registered with torch in three ways: by decorator, by schema, writing in place."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from ._kit import admitted, check, core, factor, soften

NAMESPACE: Final = "conformance_legitimate"
NO_MASKS: Final[dict[str, Any]] = {"masks": [], "features": ["scale"], "expected_failures": []}


def _weights(query: Tensor, key: Tensor, scale: float | None, *, causal: bool) -> Tensor:
    logits = query @ key.mT * factor(query, scale)
    return soften(logits, admitted(query, key, None, causal=causal))


def _shape(query: Tensor, value: Tensor) -> Tensor:
    """The shape of the answer, without numbers."""
    return query.new_empty((*query.shape[:-1], value.shape[-1]))


@torch.library.custom_op(f"{NAMESPACE}::decorated", mutates_args=())
def _decorated(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False, scale: float | None = None
) -> Tensor:
    check(query, key, value)
    return _weights(query, key, scale, causal=causal) @ value


@_decorated.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False, scale: float | None = None
) -> Tensor:
    del key, causal, scale
    return _shape(query, value)


def _keep(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Tensor) -> None:
    del output
    ctx.save_for_backward(*inputs)
    ctx.options = keyword_only_inputs


def _differentiated(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
    """By torch's own rules for the formula, recorded once more."""
    given = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
    with torch.enable_grad():
        weights = _weights(given[0], given[1], ctx.options["scale"], causal=ctx.options["causal"])
        answer = weights @ given[2]
    return torch.autograd.grad(answer, given, gradient)


_decorated.register_autograd(_differentiated, setup_context=_keep)
decorated_operator = core(name="decorated_operator", **NO_MASKS)(_decorated)

_LIBRARY: Final = torch.library.Library(NAMESPACE, "FRAGMENT")
_LIBRARY.define(
    "composed(Tensor query, Tensor key, Tensor value, *, bool causal=False, float? scale=None)"
    " -> Tensor"
)


def _composed(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False, scale: float | None = None
) -> Tensor:
    check(query, key, value)
    return torch.einsum("bhqk,bhkd->bhqd", _weights(query, key, scale, causal=causal), value)


_LIBRARY.impl("composed", _composed, "CompositeImplicitAutograd")


@core(**NO_MASKS, operator=f"{NAMESPACE}::composed")
def composed_operator(query: Tensor, key: Tensor, value: Tensor, **use: Any) -> Tensor:
    """Made of torch's operators, which know their gradients and shapes."""
    answer: Tensor = torch.ops.conformance_legitimate.composed(query, key, value, **use)
    return answer


@torch.library.custom_op(f"{NAMESPACE}::written", mutates_args=("output",))
def _written(query: Tensor, key: Tensor, value: Tensor, output: Tensor, causal: bool) -> None:  # noqa: FBT001 (an operator's schema)
    check(query, key, value)
    output.copy_(_weights(query, key, None, causal=causal) @ value)


@core(**{**NO_MASKS, "features": []}, without=["gradients"], operator=f"{NAMESPACE}::written")
def writing_operator(query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False) -> Tensor:
    """An operator that says which argument it writes into, and a new tensor for it."""
    output = _shape(query, value)
    _written(query, key, value, output, causal)
    return output
