"""Ways to compute a gradient of attention other than the right one, each a change to one step.

A variant gives the gradients of some roles: "query", "key", "value" and "bias" (the additive mask).
Which of them a candidate computes so is read for each role by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any, Final

import torch
from torch import Tensor

from ..._golden import golden
from ..mistakes import BACKWARD
from ..mistakes._steps import BLOCKS
from ..mistakes.backward_pass import WAYS_BACK, divided_by_saved_sums, heads_with, sum_of_groups
from ..mistakes.named_mistake import BackwardCall, BackwardSteps, Gradients
from .backward_steps import (
    EDGES,
    LEFT_OUT,
    ROLES,
    TOKENS,
    Backward,
    Change,
    Values,
    Variant,
    each_of_tokens,
    scores_with_upstream,
    tiles,
    value_with_upstream,
    with_key,
    with_query,
    with_upstream,
    with_value,
    without,
)
from .influence import CHANGES, OVER_ITEMS

_SOFTMAX: Final = "dS = P * (dP - rowsum(P * dP))"
_EVERY_PAIR: Final = "go over every query and key in the backward pass"
_OPERANDS: Final = "dP = dO V^T, dQ = scale dS K, dK = scale dS^T Q, dV = P^T dO"


RIGHT: Final = Variant(words="", fix="", values=lambda b: b.exact)


def _of_row_term(words: str, row_term: Callable[[Backward], Tensor]) -> Variant:
    def values(b: Backward) -> Gradients:
        return b.of_logits(b.weights * (b.of_weights - row_term(b)))

    return Variant(words=words, fix=_SOFTMAX, values=values)


def _products(b: Backward) -> Tensor:
    return b.weights * b.of_weights


def _first(axis: int) -> Change:
    return lambda tensor: tensor.narrow(axis, 0, 1).expand_as(tensor)


_PLACES: Final[tuple[tuple[str, Change], ...]] = (
    ("the first batch item", _first(0)),
    ("the first head", _first(1)),
    ("the last head", lambda t: t[:, -1:].expand_as(t)),
    ("the head before", lambda t: t.roll(1, 1)),
    ("the head after", lambda t: t.roll(-1, 1)),
    ("the first query", _first(2)),
    ("the query before", lambda t: t.roll(1, 2)),
    ("the query after", lambda t: t.roll(-1, 2)),
)


def _times_row_term(factor: float) -> Callable[[Backward], Tensor]:
    return lambda b: factor * b.row_term


def _row_term_at(place: Change) -> Callable[[Backward], Tensor]:
    return lambda b: place(b.row_term)


def _changed_logits(change: Change) -> Callable[[Backward], Tensor]:
    return lambda b: change(b.right.logit_gradient)


def _weights_at(place: Change) -> Callable[[Backward], Tensor]:
    return lambda b: place(b.weights)


def _row_terms() -> Iterator[Variant]:
    term = "the row term of the softmax, rowsum(P * dP),"
    for words, factor in (("is added instead of subtracted", -1.0), ("is subtracted twice", 2.0)):
        yield _of_row_term(f"{term} {words}", _times_row_term(factor))
    yield _of_row_term(f"{term} is halved", lambda b: 0.5 * b.row_term)
    for words, row_term in (
        ("is missing", lambda b: torch.zeros_like(b.row_term)),
        ("is a sum over the queries", lambda b: _products(b).sum(dim=-2, keepdim=True)),
        ("is a sum over the heads as well", lambda b: b.row_term.sum(dim=1, keepdim=True)),
        ("is averaged over the heads", lambda b: b.row_term.mean(dim=1, keepdim=True)),
        ("is averaged over the queries", lambda b: b.row_term.mean(dim=2, keepdim=True)),
        ("is the mean of P * dP over the keys", lambda b: _products(b).mean(-1, keepdim=True)),
        (
            "is the mean of P * dP over the keys that are attended",
            lambda b: b.row_term / b.allowed.sum(-1, keepdim=True).clamp_min(1.0),
        ),
        ("is the plain mean of dP", lambda b: b.of_weights.mean(-1, keepdim=True)),
        (
            "is the plain mean of dP over the keys that are attended",
            lambda b: (
                (b.allowed * b.of_weights).sum(-1, keepdim=True)
                / b.allowed.sum(-1, keepdim=True).clamp_min(1.0)
            ),
        ),
        ("is the plain sum of dP", lambda b: b.of_weights.sum(-1, keepdim=True)),
        ("is the largest P * dP", lambda b: _products(b).amax(-1, keepdim=True)),
        (
            "is divided by the head size of the values",
            lambda b: b.row_term / b.call.upstream.shape[-1],
        ),
        ("has squared weights", lambda b: (b.weights * _products(b)).sum(-1, keepdim=True)),
        ("lacks the first key", lambda b: _products(b)[..., 1:].sum(-1, keepdim=True)),
        ("lacks the last key", lambda b: _products(b)[..., :-1].sum(-1, keepdim=True)),
    ):
        yield _of_row_term(f"{term} {words}", row_term)
    for words, place in _PLACES:
        yield _of_row_term(f"{term} is that of {words}", _row_term_at(place))


def _of_logits(words: str, fix: str, logits: Callable[[Backward], Tensor]) -> Variant:
    return Variant(words=words, fix=fix, values=lambda b: b.of_logits(logits(b)))


def _softmaxes() -> Iterator[Variant]:
    for words, logits in (
        (
            "the softmax has the diagonal p (1 - p) of its derivative alone",
            lambda b: b.weights * (1.0 - b.weights) * b.of_weights,
        ),
        (
            "the softmax is passed as if it were the identity of the keys that are attended",
            lambda b: b.allowed * b.of_weights,
        ),
        (
            "the factor P of the softmax's derivative is missing",
            lambda b: b.allowed * (b.of_weights - b.row_term),
        ),
        (
            "the row term of the softmax is not multiplied by P",
            lambda b: b.weights * b.of_weights - b.row_term,
        ),
        (
            "the factor P of the softmax's derivative is squared",
            lambda b: b.weights * b.right.logit_gradient,
        ),
        (
            "the factor P of the softmax's derivative is its root",
            lambda b: b.weights.sqrt() * (b.of_weights - b.row_term),
        ),
    ):
        yield _of_logits(words, _SOFTMAX, logits)
    words = "the softmax is passed as if it were the identity, for hidden keys as well"
    yield Variant(words=words, fix=_SOFTMAX, values=lambda b: _of_every_pair(b, b.of_weights))
    for words, change in (
        ("the sign of dS is lost", torch.abs),
        ("negative elements of dS are zero", torch.relu),
    ):
        yield _of_logits(words, _SOFTMAX, _changed_logits(change))


def _slopes() -> Iterator[Variant]:
    """Other derivatives of a softcap, from the right one: 1 - tanh²."""
    fix = "multiply dS by 1 - tanh(scores / c)²"
    for words, slope in (
        ("1 - |tanh|", lambda right: 1.0 - (1.0 - right).sqrt()),
        ("(1 - tanh²)²", torch.square),
        ("the root of 1 - tanh²", torch.sqrt),
        ("tanh²", lambda right: 1.0 - right),
        ("1 + tanh²", lambda right: 2.0 - right),
    ):

        def values(b: Backward, slope: Change = slope) -> Gradients:
            return b.of_logits(b.right.logit_gradient, slope=slope(b.right.slope))

        text = f"the derivative of the softcap is taken to be {words}"
        yield Variant(words=text, fix=fix, values=values, roles=("query", "key"))


def _of_every_pair(b: Backward, scores: Tensor) -> Gradients:
    """What follows from gradients of the scores that masks do not stop."""
    bias, scale = b.call.inputs.bias, b.call.attention.scale
    return {
        "query": scale * (scores @ b.key),
        "key": sum_of_groups(b.call, scale * (scores.mT @ b.call.attention.query)),
        **({} if bias is None else {"bias": scores.sum_to_size(bias.shape)}),
    }


def _channels() -> Iterator[Variant]:
    """Channels of the gradients that are left out."""
    parts = [("the first channel is", slice(0, 1)), ("the last channel is", slice(-1, None))]
    parts += [(f"channels from index {edge} on are", slice(edge, None)) for edge in EDGES]
    for words, part in parts:
        change = without(3, part)
        yield Variant(
            words=f"{words} missing",
            fix="go over every channel in the backward pass",
            roles=TOKENS,
            values=each_of_tokens(change),
        )


def _pairs() -> Iterator[Variant]:
    """Pairs of query and key that are left out, or taken from elsewhere."""
    for words, change in (*LEFT_OUT, *tiles()):

        def values(b: Backward, change: Change = change) -> Gradients:
            return {
                **b.of_logits(change(b.right.logit_gradient)),
                **b.of_value(change(b.weights)),
            }

        yield Variant(words=words, fix=_EVERY_PAIR, values=values)
    yield Variant(
        words="dS is transposed",
        fix=_OPERANDS,
        values=lambda b: b.of_logits(b.right.logit_gradient.mT),
        roles=("query", "key"),
    )
    for place, change in _PLACES:

        def moved(b: Backward, change: Change = change) -> Gradients:
            return b.of_logits(change(b.right.logit_gradient))

        words = f"dS is that of {place}"
        yield Variant(words=words, fix=_OPERANDS, values=moved, roles=("query", "key", "bias"))


def _of_weights(words: str, weights: Callable[[Backward], Tensor]) -> Variant:
    return Variant(
        words=words, fix="dV = P^T dO", values=lambda b: b.of_value(weights(b)), roles=("value",)
    )


def _weights() -> Iterator[Variant]:
    for words, weights in (
        ("the weights are squared", lambda b: b.weights.square()),
        ("the weights are replaced by their roots", lambda b: b.weights.sqrt()),
        ("the weights are averaged over the heads", lambda b: _mean(b.weights, 1)),
        ("the weights are averaged over the queries", lambda b: _mean(b.weights, 2)),
        (
            "the weights are the same for every key that is attended",
            lambda b: b.allowed / b.allowed.sum(-1, keepdim=True).clamp_min(1.0),
        ),
        ("the weights are all one", lambda b: b.allowed),
        ("the weights are not divided by their sum", _exponentials),
        ("the weights are replaced by the logits", lambda b: _finite(b.call.attention.logits)),
        ("the gradient of the logits stands for the weights", lambda b: b.right.logit_gradient),
    ):
        yield _of_weights(words, weights)
    yield _of_weights("the weights are transposed", lambda b: b.weights.mT)
    for size in BLOCKS[3:]:
        words = f"the weights of each tile of {size} keys go through a softmax once more"
        yield _of_weights(words, _softmax_of_tiles(size))
    for words, place in _PLACES:
        yield _of_weights(f"the weights are those of {words}", _weights_at(place))


def _softmax_of_tiles(size: int) -> Callable[[Backward], Tensor]:
    return lambda b: torch.cat([tile.softmax(-1) for tile in b.weights.split(size, -1)], -1)


def _mean(tensor: Tensor, axis: int) -> Tensor:
    return tensor.mean(axis, keepdim=True).expand_as(tensor)


def _finite(tensor: Tensor) -> Tensor:
    return tensor.masked_fill(~tensor.isfinite(), 0.0)


def _exponentials(b: Backward) -> Tensor:
    logits: Tensor = b.call.attention.logits
    largest = _finite(logits.amax(dim=-1, keepdim=True))
    return torch.exp(logits - largest)


def _operands() -> Iterator[Variant]:
    """Other queries, keys, values and output gradients in one of the products."""
    for words, change in CHANGES:
        yield Variant(
            words=f"dS meets the key {words}",
            fix=_OPERANDS,
            roles=("query",),
            values=with_key(change),
        )
        yield Variant(
            words=f"dS meets the query {words}",
            fix=_OPERANDS,
            roles=("key",),
            values=with_query(change),
        )
        yield Variant(
            words=f"the weights meet the output gradient {words}",
            fix=_OPERANDS,
            roles=("value",),
            values=value_with_upstream(change),
        )
        yield Variant(
            words=f"dP is made of the value {words}",
            fix=_OPERANDS,
            roles=("query", "key", "bias"),
            values=with_value(change),
        )
        yield Variant(
            words=f"dP is made of the output gradient {words}",
            fix=_OPERANDS,
            roles=("query", "key", "bias"),
            values=scores_with_upstream(change),
        )
    for words, change in (*CHANGES, *OVER_ITEMS):
        yield Variant(
            words=f"each element is that {words}",
            fix="return each element at its own place",
            roles=TOKENS,
            values=each_of_tokens(change),
        )


def _groups() -> Iterator[Variant]:
    fix = "add up the gradients of all query heads that read a key/value head"
    for words, total in (
        ("only the first query head of each group counts", lambda heads: heads[:, :, 0]),
        ("only the last query head of each group counts", lambda heads: heads[:, :, -1]),
        ("the query heads of each group are averaged", lambda heads: heads.mean(dim=2)),
        ("the first query head of each group is missing", lambda h: h[:, :, 1:].sum(dim=2)),
        ("the last query head of each group is missing", lambda h: h[:, :, :-1].sum(dim=2)),
    ):

        def values(b: Backward, total: Change = total) -> Gradients:
            heads = {"key": b.right.key, "value": b.right.value}
            groups = b.call.inputs.geometry.num_kv_heads
            if groups == b.call.inputs.geometry.num_heads:
                return {role: b.exact[role] for role in heads}
            if b.call.semantics.group_order == "tile":
                apart = {r: e.unflatten(1, (-1, groups)).transpose(1, 2) for r, e in heads.items()}
            else:
                apart = {r: each.unflatten(1, (groups, -1)) for r, each in heads.items()}
            return {role: total(each) for role, each in apart.items()}

        yield Variant(words=words, fix=fix, values=values, roles=("key", "value"))


def _roundings() -> Iterator[Variant]:
    fix = "keep the backward pass in the precision of the inputs"
    for dtype in (torch.bfloat16, torch.float16):
        kind = str(dtype).removeprefix("torch.")

        def rounded(tensor: Tensor, dtype: torch.dtype = dtype) -> Tensor:
            return tensor.to(dtype).double()

        for words, values, roles in (
            ("the output gradient", with_upstream(rounded), ROLES),
            ("the key", with_key(rounded), ("query",)),
            ("the query", with_query(rounded), ("key",)),
            ("the value", with_value(rounded), ("query", "key", "bias")),
        ):
            yield Variant(
                words=f"{words} is rounded to {kind}", fix=fix, values=values, roles=roles
            )


def _with_steps(steps: BackwardSteps) -> Values:
    return lambda b: heads_with(b.call, steps)


def _recomputed() -> Iterator[Variant]:
    """Weights recomputed without several options of the call."""
    for words, left_out in (
        ("mask and causal rule", {"keep": None, "bias": None, "causal": False}),
        ("causal rule and window", {"causal": False, "window": None}),
        ("the mask's numbers and the causal rule", {"bias": None, "causal": False}),
    ):
        yield Variant(
            words=f"the weights are recomputed without {words}",
            fix="recompute the weights exactly as the forward pass makes them",
            values=_with_steps(BackwardSteps(attention=_attention_without(left_out))),
        )


def _of_other_sums() -> Iterator[Variant]:
    """Weights recomputed with another logarithm of the sum of the exponentials."""
    for words, total in (
        ("is taken to be of base 2", lambda lse, _logits: lse * math.log(2.0)),
        ("is taken to be of base e, and is of base 2", lambda lse, _logits: lse / math.log(2.0)),
        ("is not subtracted", lambda lse, _logits: torch.zeros_like(lse)),
        ("is the largest logit", lambda _lse, logits: logits.amax(dim=-1, keepdim=True)),
        *((f"is that of {words}", lambda lse, _, at=place: at(lse)) for words, place in _PLACES),
    ):

        def values(b: Backward, total: Callable[..., Tensor] = total) -> Gradients:
            logits = b.call.attention.logits.expand(b.weights.shape)
            lse = _finite(logits.logsumexp(dim=-1, keepdim=True))
            weights = torch.exp(logits - _finite(total(lse, logits)))
            return {
                **b.of_logits(weights * (b.of_weights - b.row_term)),
                **b.of_value(weights),
            }

        yield Variant(
            words=f"the saved logarithm of the sum of the exponentials {words}",
            fix="recompute the weights exactly as the forward pass makes them: exp(S - lse)",
            values=values,
        )


def _by_saved_sums() -> Iterator[Variant]:
    """Weights recomputed under another causality, over the sums that the forward pass saved."""
    for words, causal in (
        ("under the causal rule, in calls without it too", lambda _call: True),
        ("under the causal rule in calls without it alone", lambda call: not call.inputs.causal),
    ):
        yield Variant(
            words=f"the weights are recomputed {words}, and divided by the saved sums",
            fix="recompute the weights exactly as the forward pass makes them: exp(S - lse)",
            values=_with_steps(divided_by_saved_sums(causal)),
        )


def _attention_without(left_out: dict[str, Any]) -> Callable[[BackwardCall], golden.Attention]:
    return lambda call: call.other_attention(**left_out)


def _of_catalogue() -> Iterator[Variant]:
    """The entries of the catalogue that change the backward pass of the heads."""
    for entry in BACKWARD:
        steps = entry.backward
        if steps is not None and not (steps.final or steps.matrix or steps.bias):
            yield Variant(
                name=entry.name,
                words=entry.sentence,
                fix=entry.fix,
                values=_with_steps(steps),
                roles=_changed_by(steps),
            )


# Steps that change some gradients alone: the others are those of the right pass.
_CHANGES_OF: Final = {
    "row_term": ("query", "key", "bias"),
    "slope": ("query", "key"),
    "scores": ("query",),
    "scales": ("query", "key"),
    "shared": ("key", "value"),
}


def _changed_by(steps: BackwardSteps) -> tuple[str, ...]:
    """The roles whose gradients some wrong steps may change."""
    wrong = [each.name for each in fields(steps) if getattr(steps, each.name) is not None]
    changed = {role for name in wrong for role in _CHANGES_OF.get(name, ROLES)}
    return tuple(role for role in ROLES if role in changed)


def _preparations() -> Iterator[Variant]:
    for words, fix, made_at, back in WAYS_BACK:

        def values(b: Backward, made_at: Callable[..., bool] = made_at) -> Gradients:
            return b.exact if made_at(b.call.semantics) else {}

        yield Variant(words=words, fix=fix, values=values, roles=("query", "key"), unprepared=back)


VARIANTS: Final[tuple[Variant, ...]] = (
    RIGHT,
    *_of_catalogue(),
    *_row_terms(),
    *_softmaxes(),
    *_slopes(),
    *_recomputed(),
    *_of_other_sums(),
    *_by_saved_sums(),
    *_preparations(),
    *_pairs(),
    *_channels(),
    *_weights(),
    *_groups(),
    *_roundings(),
    *_operands(),
)
