"""Mistakes of custom operators: what they tell torch about themselves is not so."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from ..eager import EagerCore
from ._kit import core

NAMESPACE: Final = "conformance_broken"
NOTHING: Final[dict[str, Any]] = {
    "masks": [],
    "causal": None,
    "features": [],
    "without": ["gradients"],
}
_attention = EagerCore()


def _attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Plain attention in a tensor of its own."""
    output = _attention(query, key, value)
    if not isinstance(output, Tensor):
        msg = "no weights are asked for"
        raise TypeError(msg)
    return output


def _like(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The shape of the answer, without numbers."""
    del key
    return query.new_empty((*query.shape[:-1], value.shape[-1]))


@torch.library.custom_op(f"{NAMESPACE}::without_fake", mutates_args=())
def _without_fake(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return _attend(query, key, value)


@torch.library.custom_op(f"{NAMESPACE}::wrong_fake", mutates_args=())
def _wrong_fake(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return _attend(query, key, value)


@_wrong_fake.register_fake
def _(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    del key, value
    return query.new_empty((*query.shape[:-1], query.shape[-1] + 1))


@torch.library.custom_op(f"{NAMESPACE}::mutating", mutates_args=())
def _mutating(query: Tensor, key: Tensor, value: Tensor, scratch: Tensor) -> Tensor:
    output = _attend(query, key, value)
    scratch.copy_(output.sum())
    return output


@_mutating.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, scratch: Tensor) -> Tensor:
    del scratch
    return _like(query, key, value)


@core("operator.opcheck", operator=f"{NAMESPACE}::without_fake", **NOTHING)
class FakeMissing:
    """The operator is registered without a fake implementation: nothing can trace it."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Call the operator."""
        output: Tensor = _without_fake(query, key, value)
        return output


@core("operator.opcheck", operator=f"{NAMESPACE}::wrong_fake", **NOTHING)
class FakeOfAnotherShape:
    """The fake implementation promises the width of the queries and one more."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Call the operator."""
        output: Tensor = _wrong_fake(query, key, value)
        return output


@core("operator.opcheck", operator=f"{NAMESPACE}::mutating", **NOTHING)
class MutationUndeclared:
    """The operator writes to an argument of which its schema says that it is only read."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Call the operator with scratch memory of its own."""
        output: Tensor = _mutating(query, key, value, query.new_zeros(1))
        return output


@core("operator.opcheck", operator=f"{NAMESPACE}::without_fake", **NOTHING)
class OperatorNotCalled:
    """The operator is declared, but calls take another path."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend without it."""
        return _attend(query, key, value)
