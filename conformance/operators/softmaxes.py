"""Operators of single stages: other exponentials, other sums of them, and gates of the output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import torch
from torch import Tensor

from .._golden import golden
from .biases import linear_biases
from .functions import OF_EACH
from .loops import loops
from .moves import TILES
from .operator import Operator
from .parts import parts_doubled
from .tables import outputs_guessed_from_queries

_TILES: Final = (*TILES, 256)


# Axes that the exponentials may be summed over instead of the keys, with their words.
_OTHER_SUMS: Final = (
    ("the queries", (-2,)),
    ("the heads", (-3,)),
    ("the batch items", (-4,)),
    ("the queries and keys of the head", (-2, -1)),
    ("the whole batch item", (-3, -2, -1)),
    ("everything", (-4, -3, -2, -1)),
)
# The part of a row's sum that rounding may change before the row is open.
_ROUNDED: Final = 1e-3
_GATES: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("", torch.clone),
    ("the sigmoid of ", torch.sigmoid),
    ("the SiLU of ", torch.nn.functional.silu),
    ("the GELU of ", torch.nn.functional.gelu),
    ("the hyperbolic tangent of ", torch.tanh),
    ("the positive part of ", torch.relu),
)


def stage_operators(stage: str) -> Iterator[Operator]:
    """Yield the operators for the meaning of a stage, as opposed to its axes."""
    yield from {
        "distance_bias": linear_biases,
        "capped": _caps,
        "exponentials": _exponential_operators,
        "sinks": _sinks,
        "total": paddings,
        "shares": _share_operators,
        "weights": _weight_operators,
        "output": _output_operators,
        "answer": _gates_of_layers,
    }.get(stage, lambda: iter(()))()


# Functions of the scores and a softcap.
_CAPS: Final[tuple[tuple[str, Callable[[Tensor, float], Tensor]], ...]] = (
    ("c tanh(c times the scores), c being the softcap", lambda s, c: c * torch.tanh(c * s)),
    ("tanh(c times the scores), c being the softcap", lambda s, c: torch.tanh(c * s)),
    ("capped twice", lambda s, c: _capped(_capped(s, c), c)),
    ("the scores under the square of the softcap", lambda s, c: _capped(s, c * c)),
    ("the scores under one divided by the softcap", lambda s, c: _capped(s, 1.0 / c)),
    ("the scores clamped to half of the softcap", lambda s, c: s.clamp(-c / 2.0, c / 2.0)),
    ("the scores, those above the softcap cut off", lambda s, c: s.clamp_max(c)),
    ("c times the scores divided by (c and their size)", lambda s, c: c * s / (c + s.abs())),
    ("the scores under c by the sigmoid", lambda s, c: c * torch.sigmoid(s / c)),
    ("the scores under c by the sine", lambda s, c: c * torch.sin(s / c)),
    ("the scores under c by the arc tangent", lambda s, c: c * torch.atan(s / c)),
)


def _capped(scores: Tensor, cap: float) -> Tensor:
    return cap * torch.tanh(scores / cap)


def _caps() -> Iterator[Operator]:
    for words, function in _CAPS:
        yield Operator(words, partial(_cap_otherwise, function=function))


def _cap_otherwise(
    capped: Tensor,
    scores: Tensor,
    softcap: float | None,
    *,
    function: Callable[[Tensor, float], Tensor],
) -> Tensor:
    return capped if softcap is None else function(scores, softcap)


def _sinks() -> Iterator[Operator]:
    yield Operator("under the softcap", _sinks_under_cap)


def _sinks_under_cap(sinks: Tensor, softcap: float | None) -> Tensor:
    return sinks if softcap is None else _capped(sinks, softcap)


def _exponential_operators() -> Iterator[Operator]:
    yield from parts_doubled()
    for size in TILES:
        words = f"counted as often for the last key as fills up its tile of {size}"
        yield Operator(words, partial(_filled_up, size=size))
    fix = "take the softmax of the scaled dot products: it is no product of two feature maps"
    for words, feature in _FEATURES:
        said = f"products of query and key, each {words} first"
        made, opens = (partial(f, feature=feature) for f in (_feature_products, _rounded_features))
        yield Operator(said, made, fix=fix, opens=opens)
    for words, function in OF_EACH:
        yield Operator(f"the logits, {words}", partial(_function_of_logits, function=function))


def _filled_up(exponentials: Tensor, *, size: int) -> Tensor:
    count = exponentials.shape[-1]
    times = torch.ones(count, dtype=exponentials.dtype)
    times[-1:] += -count % size
    return exponentials * times


def _function_of_logits(
    exponentials: Tensor, logits: Tensor, *, function: Callable[[Tensor], Tensor]
) -> Tensor:
    hidden = torch.isneginf(logits)
    return function(logits.masked_fill(hidden, 0.0)).masked_fill(hidden, 0.0).to(exponentials)


# Feature maps whose products replace the exponentials of the logits (Katharopoulos et al., 2020).
_FEATURES: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("put through ELU and plus one", lambda t: torch.nn.functional.elu(t) + 1.0),
    ("with zeros for what is negative", torch.relu),
    ("squared, with zeros for what is negative", lambda t: torch.relu(t).square()),
    ("put through softplus", torch.nn.functional.softplus),
    ("put through the exponential", lambda t: t.clamp_max(50.0).exp()),
    ("put through a softmax over its channels", lambda t: t.softmax(-1)),
)


def _feature_products(
    exponentials: Tensor,
    query: Tensor,
    key: Tensor,
    attended: Tensor,
    *,
    feature: Callable[[Tensor], Tensor],
) -> Tensor:
    return _products(query, key, attended, feature).to(exponentials).expand_as(exponentials)


def _products(
    query: Tensor, key: Tensor, attended: Tensor, feature: Callable[[Tensor], Tensor]
) -> Tensor:
    products: Tensor = feature(query).double() @ feature(key).double().mT
    return products.masked_fill(~attended, 0.0)


def _rounded_features(
    empty: Tensor,
    query: Tensor,
    key: Tensor,
    attended: Tensor,
    *,
    feature: Callable[[Tensor], Tensor],
) -> Tensor:
    """Mark rows whose products change or vanish if features are rounded to float32."""
    exact = _products(query, key, attended, feature)
    rounded = _products(query.float(), key.float(), attended, feature)
    room, total = _ROUNDED * exact.sum(-1, keepdim=True), rounded.sum(-1)
    return empty | ((exact - rounded).abs() > room).any(-1) | (total == 0.0)


_SHARE: Final = "1 / (1 + exp(sink - log-sum-exp of the row)), the share of the keys"
# Wrong factors for weights without a sink, from a row's log-sum-exp, its largest logit and the
# sink.
_OF_SINKS: Final[tuple[tuple[str, Callable[[Tensor, Tensor, Tensor], Tensor]], ...]] = (
    (
        "made with exp(sink) beside exponentials that are relative to the row's largest logit",
        lambda total, most, sink: torch.sigmoid(total - most - sink),
    ),
    (
        "made with exp(sink) beside exponentials that are relative to the largest logit or sink",
        lambda total, most, sink: torch.sigmoid(total - torch.maximum(most, sink) - sink),
    ),
    (
        "made with the sink itself in the sum, not its exponential",
        lambda total, _most, sink: 1.0 / (1.0 + sink * (-total).exp()),
    ),
    ("made without a sink and multiplied by the sigmoid of it", lambda _t, _m, s: s.sigmoid()),
    (
        "made without a sink and multiplied by the sigmoid of minus the sink",
        lambda _total, _most, sink: torch.sigmoid(-sink),
    ),
    (
        "made without a sink and multiplied by its share, not by that of the keys",
        lambda total, _most, sink: torch.sigmoid(sink - total),
    ),
    (
        "multiplied by the share of the keys though the sink is in their sum already",
        lambda total, _most, sink: torch.sigmoid(total - sink).square(),
    ),
)


def _share_operators() -> Iterator[Operator]:
    yield from _over_other_sums()
    for words, factor in _OF_SINKS:
        fix = f"multiply what is made without a sink by {_SHARE}"
        yield Operator(words, partial(_weigh_by_sink, factor=factor), fix=fix)
    for words, step in (("after its own, the last one that", -1), ("before its own, the first", 1)):
        said = f"cut at the wrong end: each value meets the weight of the key {words} of the sink"
        yield Operator(said, partial(_cut_elsewhere, step=step), fix="leave the sink's column out")
    yield from loops()


def _sink_column(sinks: Tensor | None) -> Tensor:
    if sinks is None:
        msg = "there is no sink"
        raise ValueError(msg)
    return sinks[..., None, None]


def _weigh_by_sink(
    _shares: Tensor,
    logits: Tensor,
    sinks: Tensor | None,
    *,
    factor: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Tensor:
    sink = _sink_column(sinks)
    total, most = logits.logsumexp(-1, keepdim=True), logits.amax(-1, keepdim=True)
    return golden.softmax(logits) * factor(total, most, sink)


def _cut_elsewhere(shares: Tensor, sinks: Tensor | None, attended: Tensor, *, step: int) -> Tensor:
    """Move weights by one key, with the weight of the sink at the free end."""
    _sink_column(sinks)
    moved = shares.roll(step, -1)
    moved[..., -1 if step < 0 else 0] = 1.0 - shares.sum(-1)
    return moved * attended


# Numbers of largest weights that a row keeps.
_COUNTS: Final = (1, 2, 3, 4, 5, 8, 10, 16, 32, 64)
# Ways to join weights and an additive mask (zero if it only hides keys) after the softmax.
_JOINED: Final[tuple[tuple[str, Callable[[Tensor, Tensor], Tensor]], ...]] = (
    ("added", torch.add),
    ("added, and divided by their sum,", lambda w, b: _over_sum(w + b)),
    ("multiplied", torch.mul),
    ("multiplied, and divided by their sum,", lambda w, b: _over_sum(w * b)),
    ("and one multiplied", lambda w, b: w * (1.0 + b)),
    ("multiplied as its exponential", lambda w, b: w * b.exp()),
)


def _over_sum(weights: Tensor) -> Tensor:
    return weights / weights.sum(-1, keepdim=True)


def _weight_operators() -> Iterator[Operator]:
    for count in _COUNTS:
        words = f"zero for those that are not among the {count} largest of a row"
        for more, whole in (("", False), (", and the others sum to one", True)):
            yield Operator(f"{words}{more}", partial(_largest, count=count, whole=whole))
    fix = "add the additive mask to the scaled scores, before the softmax"
    made = "made with the additive mask"
    for words, join in _JOINED:
        for more, empty_too in (("", False), (", in rows without keys, too", True)):
            joined = partial(_joined, join=join, empty_too=empty_too)
            yield Operator(f"{made} {words} behind the softmax{more}", joined, fix=fix)
    said = f"{made} and its minus infinities added behind the softmax"
    yield Operator(said, _add_infinities, fix=fix)
    yield Operator(f"{said}, which hide no key from it", _add_infinities_alone, fix=fix)


def _largest(weights: Tensor, *, count: int, whole: bool) -> Tensor:
    least = weights.topk(min(count, weights.shape[-1]), -1).values[..., -1:]
    left = weights.masked_fill(weights < least, 0.0)
    if not whole:
        return left
    total = left.sum(-1, keepdim=True)
    return left * weights.sum(-1, keepdim=True) / total.where(total != 0.0, 1.0)


def _joined(
    weights: Tensor,
    logits: Tensor,
    sinks: Tensor | None,
    bias: Tensor | None,
    empty: Tensor,
    *,
    join: Callable[[Tensor, Tensor], Tensor],
    empty_too: bool,
) -> Tensor:
    given = logits.new_zeros(()) if bias is None else torch.where(logits.isneginf(), 0.0, bias)
    plain = torch.where(empty[..., None], weights, golden.softmax(logits - given, sinks=sinks))
    made = join(plain, given)
    return made if empty_too else torch.where(empty[..., None], weights, made)


def _add_infinities(
    weights: Tensor, logits: Tensor, sinks: Tensor | None, bias: Tensor | None, empty: Tensor
) -> Tensor:
    made = _joined(weights, logits, sinks, bias, empty, join=torch.add, empty_too=True)
    return made.masked_fill(logits.isneginf(), -torch.inf)


def _add_infinities_alone(
    _weights: Tensor,
    modified: Tensor,
    distance_bias: Tensor | None,
    bias: Tensor | None,
    kept: Tensor | None,
    structure: Tensor,
) -> Tensor:
    bias = modified.new_zeros(()) if bias is None else bias
    logits = modified if distance_bias is None else modified + distance_bias
    logits = logits.masked_fill(~structure, -torch.inf)
    weights = logits.softmax(-1).nan_to_num(0.0)
    hidden = torch.zeros_like(bias, dtype=torch.bool) if kept is None else ~kept
    return weights + torch.where(hidden, -torch.inf, bias)


def _over_other_sums() -> Iterator[Operator]:
    for words, axes in _OTHER_SUMS:
        said = f"the exponentials divided by their sum over {words}"
        yield Operator(said, partial(_divided_over, axes=axes))


def _divided_over(_shares: Tensor, exponentials: Tensor, *, axes: tuple[int, ...]) -> Tensor:
    total = exponentials.sum(dim=axes, keepdim=True)
    return exponentials / torch.where(total == 0.0, 1.0, total)


def _output_operators() -> Iterator[Operator]:
    yield from outputs_guessed_from_queries()
    yield from _gates()


def _gates() -> Iterator[Operator]:
    yield Operator("the queries", lambda output, given_query: given_query.expand_as(output))
    for words, function in _GATES:
        by_query = partial(_gated_by_query, function=function)
        yield Operator(f"multiplied by {words}the queries", by_query)


def _gated_by_query(
    output: Tensor, given_query: Tensor, *, function: Callable[[Tensor], Tensor]
) -> Tensor:
    return output * function(given_query)


def _gates_of_layers() -> Iterator[Operator]:
    for words, function in _GATES:
        by_token = partial(_gated_by_token, function=function)
        yield Operator(f"multiplied by {words}the query's tokens", by_token)


def _gated_by_token(
    answer: Tensor, query_tokens: Tensor, *, function: Callable[[Tensor], Tensor]
) -> Tensor:
    return answer * function(query_tokens)


def paddings() -> Iterator[Operator]:
    """Yield padding keys with zero values and a logit of zero, or of minus the softcap."""
    for size in _TILES:
        words = f"for each key that fills up the last tile of {size}"
        yield Operator(f"made with a logit of zero {words}", partial(_pad_with_zeros, size=size))
        capped = partial(_pad_with_capped, size=size)
        yield Operator(f"made with a logit of minus the softcap {words}", capped)


def _pad_with_zeros(total: Tensor, largest: Tensor, sizes: golden.Sizes, *, size: int) -> Tensor:
    return _padded(total, -largest, sizes, size)


def _pad_with_capped(
    total: Tensor, largest: Tensor, sizes: golden.Sizes, softcap: float | None, *, size: int
) -> Tensor:
    if softcap is None:
        msg = "there is no softcap"
        raise ValueError(msg)
    return _padded(total, -softcap - largest, sizes, size)


def _padded(total: Tensor, exponent: Tensor, sizes: golden.Sizes, size: int) -> Tensor:
    lacking = -sizes.key_length % size
    return total + lacking * torch.exp(exponent) if lacking else total
