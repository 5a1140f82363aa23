"""A right backward pass with its parts at hand, and the same with one operand changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from torch import Tensor

from ..._golden import golden
from ...tolerance.backward_pass import BackwardPass, backward_pass
from ..mistakes.backward_pass import gradient_of_mask, sum_of_groups
from ..mistakes.named_mistake import BackwardCall, Gradients

ROLES: Final = ("query", "key", "value", "bias")
TOKENS: Final = ("query", "key", "value")
Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Backward:
    """A call with the right backward pass and its parts under their usual names.

    ``weights`` P, ``of_weights`` dP, ``row_term`` D are ``[B, H, Lq, Lk]`` and ``[B, H, Lq, 1]``.
    """

    call: BackwardCall

    @cached_property
    def right(self) -> BackwardPass:
        """The right pass with every intermediate value."""
        return backward_pass(self.call.attention, self.call.upstream)

    @property
    def weights(self) -> Tensor:
        """P."""
        return self.right.weights

    @cached_property
    def of_weights(self) -> Tensor:
        """The gradient of P, that of keys which nobody attends as well: dP."""
        return self.call.upstream @ self.value.mT

    @property
    def row_term(self) -> Tensor:
        """The sum of P * dP over the keys: D."""
        return self.right.row_sum

    @property
    def allowed(self) -> Tensor:
        """The pairs that are attended, as numbers."""
        return self.call.attention.allowed.expand(self.weights.shape).double()

    @cached_property
    def key(self) -> Tensor:
        """The keys of every query head, those that nobody attends as well."""
        call = self.call
        return golden.repeat_heads(call.heads[1], call.heads[0].shape[1], call.semantics)

    @cached_property
    def value(self) -> Tensor:
        """The values of every query head, those that nobody attends as well."""
        call = self.call
        return golden.repeat_heads(call.heads[2], call.heads[0].shape[1], call.semantics)

    def of_logits(self, logits: Tensor) -> Gradients:
        """Every gradient that follows from that of the logits."""
        scores, scale = logits * self.right.slope, self.call.attention.scale
        return {
            "query": scale * (scores @ self.key),
            "key": sum_of_groups(self.call, scale * (scores.mT @ self.call.attention.query)),
            **gradient_of_mask(self.call, self.right, logits),
        }

    def of_weight_gradient(self, of_weights: Tensor) -> Gradients:
        """Every gradient that follows from that of the weights."""
        row_term = (self.weights * of_weights).sum(dim=-1, keepdim=True)
        return self.of_logits(self.weights * (of_weights - row_term))

    def of_value(self, weights: Tensor, upstream: Tensor | None = None) -> Gradients:
        """The gradient of the value from some weights."""
        upstream = self.call.upstream if upstream is None else upstream
        return {"value": sum_of_groups(self.call, weights.mT @ upstream)}

    @cached_property
    def exact(self) -> Gradients:
        """The right gradients."""
        return {**self.of_logits(self.right.logit_gradient), **self.of_value(self.weights)}


Values = Callable[[Backward], Gradients]


@dataclass(frozen=True, kw_only=True, eq=False)
class Variant:
    """One way to compute some gradients; ``words`` follow "in the gradient of the query".

    ``roles`` are those that it may concern. ``name`` is that of the catalogue's entry, where it is
    one: then ``words`` are a sentence of their own.
    """

    words: str
    fix: str
    values: Values
    roles: tuple[str, ...] = ROLES
    name: str = ""


def with_key(change: Change) -> Values:
    """Another key in dQ."""

    def values(b: Backward) -> Gradients:
        return {"query": b.call.attention.scale * (b.right.score_gradient @ change(b.key))}

    return values


def with_query(change: Change) -> Values:
    """Another query in dK."""

    def values(b: Backward) -> Gradients:
        queries, scale = change(b.call.attention.query), b.call.attention.scale
        return {"key": sum_of_groups(b.call, scale * (b.right.score_gradient.mT @ queries))}

    return values


def with_value(change: Change) -> Values:
    """Another value in dP."""
    return lambda b: b.of_weight_gradient(b.call.upstream @ change(b.value).mT)


def scores_with_upstream(change: Change) -> Values:
    """Another gradient of the output in dP."""
    return lambda b: b.of_weight_gradient(change(b.call.upstream) @ b.value.mT)


def value_with_upstream(change: Change) -> Values:
    """Another gradient of the output in dV."""
    return lambda b: b.of_value(b.weights, change(b.call.upstream))


def with_upstream(change: Change) -> Values:
    """Another gradient of the output, everywhere."""
    return lambda b: {**scores_with_upstream(change)(b), **value_with_upstream(change)(b)}


def each_of_tokens(change: Change) -> Values:
    """The right gradients of query, key and value, changed."""
    return lambda b: {role: change(b.exact[role]) for role in TOKENS}
