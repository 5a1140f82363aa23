"""Wrong weights, scores and answers; keys of a tile lost or counted twice."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from ..._golden import golden
from ...problems.inputs import Inputs
from ...tolerance import largest_size
from ._steps import BLOCKS, present, require, reweighed, row_largest
from .named_mistake import Edits, NamedMistake, answering, changed, edits_by, named
from .softmaxes import faint

Edit = golden.Edit
_GOLDEN: Final = "numerics.golden"
_CONVEX: Final = "numerics.convex"
_HALF: Final = torch.finfo(torch.float16).max
_NORMALISE: Final = "divide the exponentials by their own sum over the keys"


def _shifted(logits: Tensor) -> Tensor:
    return torch.exp(logits - row_largest(logits))


def _one_more(logits: Tensor) -> Tensor:
    largest = row_largest(logits).clamp_min(0.0)
    exponentials = torch.exp(logits - largest)
    return exponentials / (exponentials.sum(dim=-1, keepdim=True) + torch.exp(-largest))


def _one_more_of_shifted(logits: Tensor) -> Tensor:
    exponentials = _shifted(logits)
    return exponentials / (1.0 + exponentials.sum(-1, keepdim=True))


def _over_their_sum(logits: Tensor) -> Tensor:
    scores = present(logits)
    return scores / scores.sum(dim=-1, keepdim=True)


def _over_their_size(logits: Tensor) -> Tensor:
    return functional.normalize(present(logits), p=1.0, dim=-1)


def _uniform(logits: Tensor) -> Tensor:
    kept = (~torch.isneginf(logits)).double()
    return kept / kept.sum(dim=-1, keepdim=True)


def _hardest(logits: Tensor) -> Tensor:
    return functional.one_hot(logits.argmax(dim=-1), logits.shape[-1]).double()


def _rectified(logits: Tensor) -> Tensor:
    return present(logits).relu()


_UNIT: Final = "divided by their length over the channels"


def _distances(query: Tensor, key: Tensor, scale: float) -> Tensor:
    return -torch.cdist(query, key) * scale


def _squared_distances(query: Tensor, key: Tensor, scale: float) -> Tensor:
    return -torch.cdist(query, key).square() * scale


def _clamped(least: float, largest: float) -> Edits:
    return changed(partial(torch.clamp, min=least, max=largest), "capped")


def _plainly(logits: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Return exponentials without subtracting a maximum, and their sums, which may be zero."""
    each = torch.exp(logits.to(inputs.query.dtype))
    return each, each.sum(dim=-1, keepdim=True)


def _plain_weights(logits: Tensor, inputs: Inputs) -> Tensor:
    each, total = _plainly(logits, inputs)
    return each.double() / total.double()


def _faint_too(empty: Tensor, logits: Tensor, inputs: Inputs) -> Tensor:
    return empty | faint(_plainly(logits, inputs)[1]).squeeze(-1)


_PLAINLY: Final = (Edit("weights", _plain_weights), Edit("empty", change=_faint_too))


def _divide_by_other_sums(each_of: Callable[[Tensor], Tensor]) -> golden.Edit:
    def weights(logits: Tensor) -> Tensor:
        require(logits.shape[-1] == logits.shape[-2])
        each = each_of(logits)
        return each / each.sum(dim=-1).unsqueeze(-2)

    return Edit("weights", weights)


def _exchanged_halves(*, longer_first: bool) -> golden.Edit:
    def weights(logits: Tensor, allowed: Tensor) -> Tensor:
        count = logits.shape[-1]
        size = (count + longer_first) // 2
        halves = logits.split([size, count - size], dim=-1)
        sums = torch.cat([half.logsumexp(dim=-1, keepdim=True) for half in halves], dim=-1)
        shares = torch.softmax(sums, dim=-1).flip(-1).split(1, dim=-1)
        own = (torch.softmax(half, dim=-1) for half in halves)
        both = torch.cat([one * other for one, other in zip(own, shares, strict=True)], dim=-1)
        return both.masked_fill(~allowed, 0.0)

    return Edit("weights", weights, when=lambda sizes: sizes.key_length > 1)


WEIGHING: Final[tuple[NamedMistake, ...]] = (
    *named("logits-clamped", "numerics.large-logits")(
        "the logits are clamped",
        "subtract each row's largest logit instead",
        *(
            _clamped(sign * largest, largest)
            for sign in (-1.0, -math.inf)
            for largest in (5.0, 10.0, 20.0, 30.0, 50.0, 60.0, 80.0, 88.0, 100.0)
        ),
        *(
            (*_clamped(-math.inf, largest), *_PLAINLY)
            for largest in (5.0, 10.0, 20.0, 30.0, 50.0, 60.0, 80.0, 88.0)
        ),
    ),
    *named("divided-by-the-sums-of-other-queries", "numerics.golden")(
        "where there are as many queries as keys, the weights of key j are divided by the sum of "
        "query j",
        "keep the axis of the sum: divide by sum(-1, keepdim=True)",
        _divide_by_other_sums(_shifted),
        _divide_by_other_sums(torch.exp),
    ),
    *named("halves-merged-with-exchanged-shares", "numerics.golden")(
        "the answers of two halves of the keys are added up, each with the share of the other",
        "multiply each part by its own share: exp(its log-sum-exp - that of all)",
        _exchanged_halves(longer_first=False),
        _exchanged_halves(longer_first=True),
    ),
    *named("weights-of-sigmoid", "numerics.constant-value")(
        "each weight is the sigmoid of its own logit: they do not sum to one",
        "use softmax",
        reweighed(torch.sigmoid),
    ),
    *named("weights-of-relu", _CONVEX)(
        "the weights are the positive scores: there is no softmax",
        "use softmax",
        reweighed(_rectified),
        reweighed(lambda logits: functional.normalize(_rectified(logits), p=1.0, dim=-1)),
    ),
    *named("one-in-the-denominator", "numerics.constant-value")(
        "a one is added to the sum of the exponentials",
        _NORMALISE,
        {
            "edits": (reweighed(_one_more),),
            "fix": f"{_NORMALISE}, or declare it: semantics=conformance.Semantics(null_key=True)",
        },
        reweighed(_one_more_of_shifted),
    ),
    *named("weights-not-normalised", "numerics.constant-value")(
        "the exponentials are not divided by their sum",
        _NORMALISE,
        reweighed(_shifted),
        reweighed(torch.exp),
    ),
    *named("weights-divided-by-count", "numerics.constant-value")(
        "the exponentials are divided by the number of keys instead of their sum",
        _NORMALISE,
        reweighed(lambda logits: _shifted(logits) / logits.shape[-1]),
        reweighed(lambda logits: torch.exp(logits) / logits.shape[-1]),
    ),
    *named("scores-over-their-sum", _CONVEX)(
        "the scores are divided by their sum without exponentials",
        "use softmax",
        reweighed(_over_their_sum),
        reweighed(_over_their_size),
    ),
    *named("weights-uniform", _GOLDEN)(
        "all keys that are not hidden weigh the same: the scores have no influence",
        "weigh the values by the softmax of the scores",
        reweighed(_uniform),
    ),
    *named("weights-of-argmax", _GOLDEN)(
        "only the key with the largest logit is attended",
        "weigh the values by the softmax of the scores",
        reweighed(_hardest),
    ),
    *named("weights-transposed", _GOLDEN)(
        "queries and keys of the weights are swapped before they meet the values",
        "multiply weights [.., queries, keys] by the values",
        edits_by("those of queries and keys exchanged", "weights"),
    ),
    *named("scores-of-cosines", _GOLDEN)(
        "queries and keys are normalised first: the scores are cosines",
        "take the dot products of the queries and keys as they are, or declare it: "
        'semantics=conformance.Semantics(qk_norm="l2")',
        edits_by(_UNIT, "given_query", "given_key"),
    ),
    *named("queries-normalised", _GOLDEN)(
        "the queries are normalised to unit length first",
        "take the dot products of the queries as they are",
        edits_by(_UNIT, "given_query"),
    ),
    *named("keys-normalised", _GOLDEN)(
        "the keys are normalised to unit length first",
        "take the dot products of the keys as they are",
        edits_by(_UNIT, "given_key"),
    ),
    *named("scores-of-distances", "numerics.key-shift")(
        "the scores are negative distances between query and key",
        "take dot products",
        Edit("scores", _distances),
        Edit("scores", _squared_distances),
    ),
    *named("scores-without-sign", _GOLDEN)(
        "the sign of the scores is lost",
        "take the dot products as they are",
        edits_by("without their sign", "scores"),
    ),
    *named("values-normalised", "numerics.value-linear")(
        "the values are normalised to unit length",
        "take the values as they are",
        edits_by(_UNIT, "value_heads"),
    ),
    *named(
        "values-clipped-to-half",
        _GOLDEN,
        where=lambda inputs: largest_size(inputs.value.detach()) > _HALF and not inputs.is_layer,
    )(
        "values past the largest number of float16 are clipped to it, whatever the dtype is",
        "clip nothing, or to the range of the tensor's own dtype",
        Edit("value_heads", change=lambda value: value.clamp(-_HALF, _HALF)),
    ),
    *named("heads-output-rectified", "numerics.value-linear")(
        "an activation function is applied to the weighted sums: negative ones become zero",
        "leave it out",
        edits_by("with zeros for what is negative", "output"),
    ),
    *named("output-times-root-of-keys", _CONVEX)(
        "the weighted sums are multiplied by the root of the number of keys",
        "leave the factor out",
        edits_by("multiplied by the root of the number of keys", "output"),
    ),
    *named("output-divided-by-keys", _CONVEX)(
        "the weighted sums are divided by the number of keys: a mean where a sum is meant",
        "add the weighted values up",
        edits_by("divided by the number of keys", "output"),
    ),
    *named("output-times-keys", _CONVEX)(
        "the weighted sums are multiplied by the number of keys",
        "leave the factor out",
        edits_by("multiplied by the number of keys", "output"),
    ),
    *named("answer-zero", _GOLDEN)(
        "the answer is zero",
        "return what was computed",
        answering(torch.zeros_like),
    ),
    *named("answer-nan", _GOLDEN)(
        "the answer is NaN",
        "look for what divides by zero, takes infinity off infinity, or is never written",
        answering(lambda answer: torch.full_like(answer, math.nan)),
    ),
)


def _lost(keys: str) -> Edits:
    return edits_by(f"false for {keys}", "admitted", when=lambda sizes: sizes.key_length > 1)


def _count_padding(tile: int) -> Edits:
    def pads(sizes: golden.Sizes) -> bool:
        return sizes.key_length % tile != 0

    words = f"made with a logit of zero for each key that fills up the last tile of {tile}"
    sums = edits_by(words, "total", when=pads)
    return *sums, Edit("weights", lambda shares: shares, when=pads)


TILES: Final[tuple[NamedMistake, ...]] = (
    *named("keys-behind-the-last-tile-lost", "numerics.any-length")(
        "keys behind the last full tile are never read",
        "round the number of tiles up and mask the rest of the last one",
        *(_lost(f"keys past whole tiles of {block}, where there is one") for block in BLOCKS[1:]),
    ),
    *named("padding-of-the-last-tile-counted", _GOLDEN)(
        "the zeros that fill the last tile up enter the softmax as logits of zero",
        "set their logits to minus infinity",
        *(_count_padding(block) for block in BLOCKS[1:]),
    ),
    *named("last-key-lost", "equivariance.keys")(
        "the last key is never attended",
        "let the loop over keys reach the last one",
        _lost("the last key"),
    ),
    *named("first-key-lost", "equivariance.keys")(
        "the first key is never attended",
        "let the loop over keys begin with the first one",
        _lost("the first key"),
    ),
)
