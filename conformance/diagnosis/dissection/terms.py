"""Terms that logits may be made of, right ones and wrong ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ..._golden import golden
from ...tolerance import model
from ..mistakes import DeclaredCall
from ..mistakes._steps import (
    admitted_by_mask,
    biased,
    capped_scores,
    keys_ahead,
    of_groups,
    plain_scores,
    scored,
)
from .influence import CHANGED, CHANGES, first, in_turns, last
from .tiles import tile_values

TermValues = Callable[[DeclaredCall, golden.Attention], Tensor | None]


@dataclass(frozen=True)
class Term:
    """Something that may be part of a logit: values ``[B, H, Lq, Lk]``, None where there are none.

    ``words`` are a noun phrase; ``operand`` says whether it takes the place of the dot products.
    ``fix`` says what to do instead, where that depends on the term, and ``text`` what is wrong
    where it is the one term too many.
    """

    name: str
    words: str
    values: TermValues
    operand: bool = False
    fix: str = ""
    text: str = ""


def _of_scores(function: Callable[[Tensor], Tensor]) -> TermValues:
    return lambda _call, attention: biased(attention, function(capped_scores(attention)))


def _of_products(function: Callable[[Tensor], Tensor]) -> TermValues:
    return lambda _call, a: scored(a, function(a.query @ a.key.mT) * a.scale)


def _products(query: Callable[[Tensor], Tensor], key: Callable[[Tensor], Tensor]) -> TermValues:
    """Scaled dot products of changed operands."""

    def values(_call: DeclaredCall, attention: golden.Attention) -> Tensor | None:
        queries, keys = query(attention.query), key(attention.key)
        if queries.shape[-1] != keys.shape[-1]:
            return None
        return scored(attention, queries @ keys.mT * attention.scale).expand_as(attention.scores)

    return values


def _in_turns(roles: str) -> TermValues:
    """Scaled dot products of heads that are dealt out to the groups in turns."""

    def values(call: DeclaredCall, attention: golden.Attention) -> Tensor | None:
        order = in_turns(call.inputs.geometry)
        if order is None:
            return None
        query = attention.query[:, order] if "q" in roles else attention.query
        key = attention.key[:, order] if "k" in roles else attention.key
        return scored(attention, query @ key.mT * attention.scale)

    return values


def _group_mean(call: DeclaredCall, attention: golden.Attention) -> Tensor | None:
    """Scaled dot products with the mean of the queries of each group of heads."""
    sizes, query = call.inputs.geometry, attention.query
    if sizes.num_kv_heads in (0, sizes.num_heads):
        return None
    mean = query.unflatten(1, (sizes.num_kv_heads, -1)).mean(2, keepdim=True)
    mean = mean.expand(-1, -1, sizes.num_heads // sizes.num_kv_heads, -1, -1).flatten(1, 2)
    return scored(attention, mean @ attention.key.mT * attention.scale)


def _cached_products(change: Callable[[Tensor], Tensor], *, cached: bool) -> TermValues:
    """Scaled products with cached keys, or new ones, changed before a group's heads share them."""

    def values(call: DeclaredCall, attention: golden.Attention) -> Tensor | None:
        past, count = call.inputs.past, attention.key.shape[1]
        if not past:
            return None
        keys = of_groups(attention.key, call)
        before, after = keys[:, :, :past], keys[:, :, past:]
        parts = (change(before), after) if cached else (before, change(after))
        key = golden.repeat_heads(torch.cat(parts, 2), count, call.semantics)
        return scored(attention, attention.query @ key.mT * attention.scale)

    return values


def _cached_last(call: DeclaredCall, attention: golden.Attention) -> Tensor | None:
    """Scaled dot products with the cached keys behind the new ones."""
    past = call.inputs.past
    if not past:
        return None
    return scored(attention, attention.query @ attention.key.roll(-past, 2).mT * attention.scale)


def capped_at(cap: float) -> Term:
    """The scores under a softcap that nobody asked for."""
    words = f"the scores under a softcap of {cap:g}"

    def values(_call: DeclaredCall, attention: golden.Attention) -> Tensor:
        return cap * torch.tanh(plain_scores(attention) / cap)

    act = f"{cap:g} * torch.tanh(score / {cap:g})"
    fix = "leave the scores as they are, or declare the cap: "
    fix += f"semantics=conformance.Semantics(score_mod=lambda score, *_: {act})"
    return Term(words, words, values, operand=True, fix=fix)


def _under_cap(function: Callable[[Tensor, float], Tensor]) -> TermValues:
    """A function of the scores without a softcap, and of the softcap."""

    def values(_call: DeclaredCall, attention: golden.Attention) -> Tensor | None:
        cap = attention.softcap
        return None if cap is None else function(plain_scores(attention), cap)

    return values


def _capped(scores: Tensor, cap: float) -> Tensor:
    return cap * torch.tanh(scores / cap)


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _channels(chosen: Callable[[int], slice]) -> Callable[[Tensor], Tensor]:
    def cut(tensor: Tensor) -> Tensor:
        kept = torch.zeros_like(tensor)
        part = chosen(tensor.shape[-1])
        kept[..., part] = tensor[..., part]
        return kept

    return cut


def _over_deviation(fewer: int, added: float) -> Callable[[Tensor], Tensor]:
    """Scores over their standard deviation, as they are where there are too few keys for one."""

    def divided(scores: Tensor) -> Tensor:
        if scores.shape[-1] <= fewer:
            return scores
        deviation = scores.std(-1, keepdim=True, correction=fewer)
        return scores / _not_zero(deviation + added)

    return divided


def _over_largest(scores: Tensor) -> Tensor:
    return scores / _not_zero(scores.abs().amax(-1, keepdim=True))


def _not_zero(divisor: Tensor) -> Tensor:
    return torch.where(divisor == 0.0, 1.0, divisor)


def _exchanged(scores: Tensor) -> Tensor:
    square = scores.shape[-1] == scores.shape[-2]
    return scores.mT if square else torch.zeros_like(scores)


_UNDER_CAP: Final[tuple[tuple[str, Callable[[Tensor, float], Tensor]], ...]] = (
    ("the scores with the softcap applied twice", lambda s, c: _capped(_capped(s, c), c)),
    ("c tanh(c times the scores), c being the softcap", lambda s, c: c * torch.tanh(c * s)),
    ("tanh(c times the scores), c being the softcap", lambda s, c: torch.tanh(c * s)),
    ("the scores under half of the softcap", lambda s, c: _capped(s, c / 2.0)),
    ("the scores under twice the softcap", lambda s, c: _capped(s, 2.0 * c)),
    # Kernels that work to the base 2 multiply scores by log2(e): behind the softcap, not before.
    ("the scores under ln(2) times the softcap", lambda s, c: _capped(s, c * math.log(2.0))),
    ("the scores under the softcap times log2(e)", lambda s, c: _capped(s, c / math.log(2.0))),
    ("the scores under the square of the softcap", lambda s, c: _capped(s, c * c)),
    ("the scores under one divided by the softcap", lambda s, c: _capped(s, 1.0 / c)),
    ("the scores clamped to half of the softcap", lambda s, c: s.clamp(-c / 2.0, c / 2.0)),
    ("the scores of which those above the softcap are cut off", lambda s, c: s.clamp_max(c)),
    ("c times the scores divided by (c and their size)", lambda s, c: c * s / (c + s.abs())),
    ("the scores under c by the sigmoid", lambda s, c: c * torch.sigmoid(s / c)),
    ("the scores under c by the sine", lambda s, c: c * torch.sin(s / c)),
    ("the scores under c by the arc tangent", lambda s, c: c * torch.atan(s / c)),
)
_FIX_CAP: Final = "cap the scaled scores once: c * tanh(scores / c)"
_CAPS: Final = (1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 50.0, 100.0)
_CUTS: Final[tuple[tuple[str, Callable[[int], slice]], ...]] = (
    ("all channels but the first", lambda size: slice(1, size)),
    ("all channels but the last", lambda size: slice(0, size - 1)),
    ("the first half of the channels", lambda size: slice(0, size // 2)),
    ("the first half of the channels, rounded up", lambda size: slice(0, (size + 1) // 2)),
    ("the second half of the channels", lambda size: slice(size // 2, size)),
    ("every second channel", lambda size: slice(0, size, 2)),
    ("every second channel from the second", lambda size: slice(1, size, 2)),
    ("the first channel", lambda _size: slice(0, 1)),
    ("the first 64 channels", lambda _size: slice(0, 64)),
    ("the first 32 channels", lambda _size: slice(0, 32)),
    ("whole groups of eight channels", lambda size: slice(0, size // 8 * 8)),
    ("whole groups of four channels", lambda size: slice(0, size // 4 * 4)),
)
_FUNCTIONS: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("the absolute value of the scores", torch.abs),
    ("the square of the scores", torch.square),
    ("the cube of the scores", lambda scores: scores**3),
    ("the positive part of the scores", torch.relu),
    ("the hyperbolic tangent of the scores", torch.tanh),
    ("the sigmoid of the scores", torch.sigmoid),
    ("the exponential of the scores", lambda scores: scores.clamp_max(50.0).exp()),
    ("the sine of the scores", torch.sin),
    ("the rounded scores", torch.round),
    ("the scores rounded down", torch.floor),
    ("the softmax of the scores", lambda scores: torch.softmax(scores, -1)),
    ("the scores cut off at one", lambda scores: scores.clamp_max(1.0)),
    ("the mean of the row's scores over the queries", lambda s: s.mean(-2, keepdim=True) + 0 * s),
    ("the largest score of each key over the queries", lambda s: s.amax(-2, keepdim=True) + 0 * s),
    ("the sum of the scores so far", lambda scores: scores.cumsum(-1)),
    ("the softmax over the queries", lambda scores: torch.log_softmax(scores, -2)),
    ("the softmax over the heads", lambda scores: torch.log_softmax(scores, 1)),
    ("the softmax over the batch items", lambda scores: torch.log_softmax(scores, 0)),
    ("the scores of queries and keys exchanged", _exchanged),
    ("the scores averaged over the heads", lambda s: s.mean(1, keepdim=True).expand_as(s)),
    ("the scores summed over the heads", lambda s: s.sum(1, keepdim=True).expand_as(s)),
    *(
        (f"the scores divided by their {words} over the keys{more}", _over_deviation(fewer, added))
        for words, fewer in (("deviation", 0), ("deviation (over one key less)", 1))
        for more, added in (("", 0.0), (" and 1e-6", 1e-6), (" and 1e-5", 1e-5))
    ),
    ("the scores divided by the largest size in their row", _over_largest),
    ("the scores divided by the length of their row", lambda s: normalize(s, dim=-1)),
)


# What linear attention makes of the channels of queries and keys before they meet (Katharopoulos
# et al., 2020); its weights are the products themselves.
_FEATURES: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("put through ELU and plus one", lambda t: torch.nn.functional.elu(t) + 1.0),
    ("with zeros for what is negative", torch.relu),
    ("squared, with zeros for what is negative", lambda t: torch.relu(t).square()),
    ("put through softplus", torch.nn.functional.softplus),
    ("put through the exponential", lambda t: t.clamp_max(50.0).exp()),
    ("put through a softmax over its channels", lambda t: t.softmax(-1)),
)


def _of_features(feature: Callable[[Tensor], Tensor]) -> TermValues:
    """The logarithm of products, whose softmax are the products divided by their sum.

    NaN in rows that the features' rounding to float32 changes, and in those whose sum is zero: it
    has underflowed. An additive mask has no part in them: it is taken off.
    """

    def products(query: Tensor, key: Tensor) -> Tensor:
        return feature(query).double() @ feature(key).double().mT

    def values(_call: DeclaredCall, a: golden.Attention) -> Tensor:
        exact, rounded = products(a.query, a.key), products(a.query.float(), a.key.float())
        most = model.SAME_READ * exact.sum(-1, keepdim=True)
        kept = ((exact - rounded).abs() <= most) & (rounded.sum(-1, keepdim=True) > 0.0)
        lost = ~kept.all(-1, keepdim=True)
        logs = exact.clamp_min(model.NEGLIGIBLE_WEIGHT).log().masked_fill(lost, torch.nan)
        return logs if a.bias is None else logs - a.bias.masked_fill(torch.isneginf(a.bias), 0.0)

    return values


def _operands() -> Iterator[Term]:
    for words, change in CHANGED:
        yield Term(f"query {words}", f"the query {words}", _products(change, _same), operand=True)
        yield Term(f"key {words}", f"the key {words}", _products(_same, change), operand=True)
    for words, change in CHANGED:
        name = f"query and key {words}"
        yield Term(name, f"the {name}", _products(change, change), operand=True)
    for words, change in CHANGES:
        for part, of_cached in (("cached", True), ("new", False)):
            name = f"the {part} keys, each taken to be the key {words}"
            yield Term(name, name, _cached_products(change, cached=of_cached), operand=True)
    for words, of_products in (
        ("the absolute value of the dot products, scaled", torch.abs),
        ("the positive part of the dot products, scaled", torch.relu),
        ("the square of the dot products, scaled", torch.square),
    ):
        yield Term(words, words, _of_products(of_products), operand=True)
    yield Term(
        "cached keys last", "the new keys before the cached ones", _cached_last, operand=True
    )
    yield from map(capped_at, _CAPS)
    for words, chosen in _CUTS:
        yield Term(words, words, _products(_channels(chosen), _same), operand=True)
    fix = "let the softmax see the scaled dot products of each query and key as they are"
    for words, function in _FUNCTIONS:
        yield Term(words, words, _of_scores(function), operand=True, fix=fix)


def _places(
    function: Callable[[Tensor, Tensor], Tensor], *, bottom_right: bool | None = None
) -> TermValues:
    """Of the index of the key and how far it lies ahead of the query."""

    def values(call: DeclaredCall, attention: golden.Attention) -> Tensor:
        ahead = keys_ahead(call, bottom_right=bottom_right).double()
        keys = torch.arange(ahead.shape[-1]).double().expand_as(ahead)
        return function(keys, ahead).double().expand_as(attention.scores)

    return values


def _distances(function: Callable[[Tensor], Tensor], *, bottom_right: bool | None) -> TermValues:
    """Of how far the key lies ahead, from the declared corner or another."""
    return _places(lambda _keys, ahead: function(ahead), bottom_right=bottom_right)


def _bias(change: Callable[[Tensor], Tensor]) -> TermValues:
    def values(call: DeclaredCall, attention: golden.Attention) -> Tensor | None:
        bias = call.inputs.bias
        if bias is None:
            return None
        finite = bias.double().masked_fill(torch.isneginf(bias), 0.0)
        changed = change(finite.expand_as(attention.scores))
        return changed if changed.shape == attention.scores.shape else None

    return values


def _in_place(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """What a changed bias adds to the right one; of another shape where it does not fit."""

    def more(bias: Tensor) -> Tensor:
        changed = change(bias)
        return changed - bias if changed.shape == bias.shape else changed

    return more


def _kept(call: DeclaredCall, attention: golden.Attention) -> Tensor | None:
    if call.inputs.keep is None:
        return None
    return admitted_by_mask(call).double().expand_as(attention.scores)


def _slopes(call: DeclaredCall, attention: golden.Attention) -> Tensor:
    """A linear bias by distance with the slopes of ALiBi (Press et al., 2022)."""
    heads = attention.scores.shape[1]
    slopes = torch.tensor([2.0 ** (-8.0 * (head + 1) / heads) for head in range(heads)])
    return slopes.double()[None, :, None, None] * keys_ahead(call).double()


_OF_BIAS: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("of the first batch item", first(0)),
    ("of the first head", first(1)),
    ("of the first query", first(2)),
    ("of the last query", last(2)),
    ("of the opposite head", lambda t: t.flip(1)),
    ("with queries and keys exchanged", lambda t: t.mT),
    ("of the key counted from the end", lambda t: t.flip(-1)),
    ("of the key before", lambda t: t.roll(1, -1)),
    ("of the key after", lambda t: t.roll(-1, -1)),
    ("without its sign", torch.abs),
    ("squared", torch.square),
    ("as an exponential", torch.exp),
    ("as a truth value", lambda t: (t != 0).double()),
)
_IN_PLACE_OF_BIAS: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("without what is negative", torch.relu),
    ("without what is positive", lambda t: t.clamp_max(0.0)),
    ("kept between -1 and 1", lambda t: t.clamp(-1.0, 1.0)),
    ("by the hyperbolic tangent", torch.tanh),
    ("by the sigmoid", torch.sigmoid),
    ("by the logarithm of the sigmoid", torch.nn.functional.logsigmoid),
    ("rounded", torch.round),
)


def _added() -> Iterator[Term]:
    yield Term("bias", "the additive mask", _bias(_same))
    for words, change in _OF_BIAS:
        yield Term(f"bias {words}", f"the additive mask {words}", _bias(change))
    fix = "add the additive mask to the logits as it is"
    for words, change in (*_OF_BIAS, *_IN_PLACE_OF_BIAS):
        name = f"the additive mask {words} in place of the mask itself"
        text = f"the additive mask {words} is added in place of the mask itself"
        yield Term(name, name, _bias(_in_place(change)), fix=fix, text=text)
    yield Term("kept", "one for each key that the mask keeps", _kept)
    for words, places in (
        ("one for the first key", lambda keys, _ahead: keys == 0),
        ("one for the last key", lambda keys, _ahead: keys == keys.amax()),
        ("one for the query's own place", lambda _keys, ahead: ahead == 0),
        ("one for the keys after the query", lambda _keys, ahead: ahead > 0),
        ("one for every second key", lambda keys, _ahead: keys % 2 == 0),
        ("the index of the key", lambda keys, _ahead: keys),
    ):
        yield Term(words, words, _places(places))
    for words, distance in (
        ("the distance from query to key", torch.abs),
        ("the logarithm of one and the distance", lambda ahead: ahead.abs().log1p()),
        ("the square of the distance", torch.square),
    ):
        for corner, bottom_right in (("", None), ("first", False), ("last", True)):
            said = f"{words}, queries counted from the {corner} key" if corner else words
            yield Term(said, said, _distances(distance, bottom_right=bottom_right))
    yield Term("slopes", "a bias by distance with a slope for each head", _slopes)
    yield ALIBI
    yield Term(
        "length of the key",
        "the square of the key's length",
        lambda _call, a: a.key.square().sum(-1)[:, :, None].expand_as(a.scores),
    )
    yield Term(
        "sum of the key",
        "the sum of the key's channels",
        lambda _call, a: a.key.sum(-1)[:, :, None].expand_as(a.scores),
    )
    for words, of_tiles in tile_values():
        yield Term(words, words, of_tiles)


ALIBI: Final = Term(
    "alibi", "the declared bias by distance", lambda _call, attention: attention.alibi
)
# Other operands have that bias in them. Where it is all that there is, the shortest words say so.
_ALIBI_ALONE: Final = Term(
    "alibi alone",
    "the ALiBi bias alone",
    lambda _call, attention: attention.alibi,
    operand=True,
    fix="add the bias by distance to the scaled dot products: it does not take their place",
)
SCORES: Final = Term("scores", "the scores", lambda _call, a: scored(a, plain_scores(a)))
PRODUCTS: Final = Term("products", "the scaled products", lambda _call, a: plain_scores(a))
UNCAPPED: Final = Term(
    "uncapped scores",
    "the scores before the softcap",
    lambda _call, a: None if a.softcap is None else plain_scores(a),
    operand=True,
)
_IN_TURNS: Final = tuple(
    Term(words, words, _in_turns(roles), operand=True)
    for role, roles in (("query", "q"), ("key", "k"), ("query and key", "qk"))
    for words in (f"the {role} of the head dealt out in turns over the groups",)
)
_OF_GROUPS: Final = Term(
    "query averaged over its group",
    "the query averaged over the heads of its group",
    _group_mean,
    operand=True,
)
_LINEAR: Final = tuple(
    Term(
        name,
        name,
        _of_features(feature),
        operand=True,
        fix="take the softmax of the scaled dot products: it is no product of two feature maps",
        text=f"the weights are products of query and key, each {words} first, over their sum",
    )
    for words, feature in _FEATURES
    for name in (f"the logarithm of products of query and key, each {words}",)
)
_CAPPED: Final = tuple(
    Term(words, words, _under_cap(under), operand=True, fix=_FIX_CAP) for words, under in _UNDER_CAP
)
OPERANDS: Final = (UNCAPPED, _ALIBI_ALONE, *_CAPPED, *_operands(), *_IN_TURNS, _OF_GROUPS, *_LINEAR)
ADDED: Final = tuple(_added())
