"""Terms that logits may be made of, right ones and wrong ones."""

from __future__ import annotations

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
    keys_ahead,
    plain_scores,
    scored,
)

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


def capped_at(cap: float) -> Term:
    """The scores under a softcap that nobody asked for."""
    words = f"the scores under a softcap of {cap:g}"

    def values(_call: DeclaredCall, attention: golden.Attention) -> Tensor:
        return cap * torch.tanh(plain_scores(attention) / cap)

    act = f"{cap:g} * torch.tanh(score / {cap:g})"
    fix = "leave the scores as they are, or declare the cap: "
    fix += f"semantics=conformance.Semantics(score_mod=lambda score, *_: {act})"
    return Term(words, words, values, operand=True, fix=fix)


_CAPS: Final = (1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 50.0, 100.0)


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


def _cosines(roles: str) -> TermValues:
    """Scaled dot products of operands of length one: at a temperature they are cosines."""

    def values(_call: DeclaredCall, attention: golden.Attention) -> Tensor:
        query, key = (
            normalize(heads, dim=-1) if role in roles else heads
            for role, heads in (("q", attention.query), ("k", attention.key))
        )
        return scored(attention, query @ key.mT * attention.scale)

    return values


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


def _bias(call: DeclaredCall, attention: golden.Attention) -> Tensor | None:
    bias = call.inputs.bias
    if bias is None:
        return None
    return bias.double().masked_fill(torch.isneginf(bias), 0.0).expand_as(attention.scores)


def _kept(call: DeclaredCall, attention: golden.Attention) -> Tensor | None:
    if call.inputs.keep is None:
        return None
    return admitted_by_mask(call).double().expand_as(attention.scores)


def _slopes(call: DeclaredCall, attention: golden.Attention) -> Tensor:
    """A linear bias by distance with the slopes of ALiBi (Press et al., 2022)."""
    heads = attention.scores.shape[1]
    slopes = torch.tensor([2.0 ** (-8.0 * (head + 1) / heads) for head in range(heads)])
    return slopes.double()[None, :, None, None] * keys_ahead(call).double()


def _added() -> Iterator[Term]:
    yield Term("bias", "the additive mask", _bias)
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
_OF_LENGTH_ONE: Final = tuple(
    Term(f"{words} divided by its length", f"the {words} divided by its length", of, operand=True)
    for words, of in (
        ("query", _cosines("q")),
        ("key", _cosines("k")),
        ("query and key", _cosines("qk")),
    )
)
OPERANDS: Final = (UNCAPPED, _ALIBI_ALONE, *_OF_LENGTH_ONE, *map(capped_at, _CAPS), *_LINEAR)
ADDED: Final = tuple(_added())
