"""Other weights, other scores, other answers; keys of a tile lost or counted twice."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from ..._golden import golden
from ...problems.inputs import Inputs
from ...tolerance import largest_size
from ._steps import (
    BLOCKS,
    capped_scores,
    emptied,
    plain_scores,
    present,
    require,
    rescored,
    reweighed,
    row_largest,
    weighing,
    with_output,
)
from .named_mistake import CoreChange, DeclaredCall, Heads, NamedMistake, named
from .softmaxes import faint

_GOLDEN: Final = "numerics.golden"
_CONVEX: Final = "numerics.convex"
_HALF: Final = torch.finfo(torch.float16).max
_NORMALISE: Final = "divide the exponentials by their own sum over the keys"


def _one_more(logits: Tensor) -> Tensor:
    largest = row_largest(logits).clamp_min(0.0)
    exponentials = torch.exp(logits - largest)
    return exponentials / (exponentials.sum(dim=-1, keepdim=True) + torch.exp(-largest))


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


def _normalised(*roles: str) -> Callable[[DeclaredCall, Heads], Heads]:
    def heads(_call: DeclaredCall, before: Heads) -> Heads:
        pairs = zip(("query", "key", "value"), before, strict=True)
        changed = [functional.normalize(t, dim=-1) if name in roles else t for name, t in pairs]
        return changed[0], changed[1], changed[2]

    return heads


def _transposed_weights(_call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
    require(attention.weights.shape[-1] == attention.weights.shape[-2])
    return weighing(attention, attention.weights.mT)


def _distances(attention: golden.Attention) -> Tensor:
    return torch.cdist(attention.query, attention.key)


def _clamped(least: float, largest: float) -> CoreChange:
    return rescored(lambda attention: capped_scores(attention).clamp(least, largest))


def _clamped_plainly(least: float, largest: float) -> CoreChange:
    """Clamped logits whose exponentials are taken without the row's largest: sums may be zero."""

    def core(call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
        clamped = _clamped(least, largest)(call, attention) or attention
        each = torch.exp(clamped.logits.to(call.inputs.query.dtype))
        total = each.sum(dim=-1, keepdim=True)
        weights = each.double() / total.double()
        return emptied(weighing(attention, weights), faint(total).squeeze(-1))

    return core


def _of_other_sums(*, shifted: bool) -> CoreChange:
    """Column j of square weights is divided by the sum of query j."""

    def core(_call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
        logits = attention.logits
        require(logits.shape[-1] == logits.shape[-2])
        each = torch.exp(logits - row_largest(logits) if shifted else logits)
        return weighing(attention, each / each.sum(dim=-1).unsqueeze(-2))

    return core


def _exchanged_halves(*, longer_first: bool) -> CoreChange:
    """Each half of the keys has a softmax of its own, with the share of the other half."""

    def core(_call: DeclaredCall, attention: golden.Attention) -> golden.Attention | None:
        count = attention.logits.shape[-1]
        first = (count + longer_first) // 2
        if not 0 < first < count:
            return None
        halves = attention.logits.split([first, count - first], dim=-1)
        sums = torch.cat([half.logsumexp(dim=-1, keepdim=True) for half in halves], dim=-1)
        shares = torch.softmax(sums, dim=-1).flip(-1).split(1, dim=-1)
        own = (torch.softmax(half, dim=-1) for half in halves)
        weights = torch.cat([one * other for one, other in zip(own, shares, strict=True)], dim=-1)
        return weighing(attention, weights.masked_fill(~attention.allowed, 0.0))

    return core


def _times_keys(power: float) -> CoreChange:
    return with_output(lambda attention: attention.output * attention.logits.shape[-1] ** power)


WEIGHING: Final[tuple[NamedMistake, ...]] = (
    *named("logits-clamped", "numerics.large-logits")(
        "the logits are clamped",
        "subtract each row's largest logit instead",
        *(
            {"core": _clamped(sign * largest, largest)}
            for sign in (-1.0, -math.inf)
            for largest in (5.0, 10.0, 20.0, 30.0, 50.0, 60.0, 80.0, 88.0, 100.0)
        ),
        *(
            {"core": _clamped_plainly(-math.inf, largest)}
            for largest in (5.0, 10.0, 20.0, 30.0, 50.0, 60.0, 80.0, 88.0)
        ),
    ),
    *named("divided-by-the-sums-of-other-queries", "numerics.golden")(
        "where there are as many queries as keys, the weights of key j are divided by the sum of "
        "query j",
        "keep the axis of the sum: divide by sum(-1, keepdim=True)",
        {"core": _of_other_sums(shifted=True)},
        {"core": _of_other_sums(shifted=False)},
    ),
    *named("halves-merged-with-exchanged-shares", "numerics.golden")(
        "the answers of two halves of the keys are added up, each with the share of the other",
        "multiply each part by its own share: exp(its log-sum-exp - that of all)",
        {"core": _exchanged_halves(longer_first=False)},
        {"core": _exchanged_halves(longer_first=True)},
    ),
    *named("weights-of-sigmoid", "numerics.constant-value")(
        "each weight is the sigmoid of its own logit: they do not sum to one",
        "use softmax",
        {"core": reweighed(torch.sigmoid)},
    ),
    *named("weights-of-relu", _CONVEX)(
        "the weights are the positive scores: there is no softmax",
        "use softmax",
        {"core": reweighed(_rectified)},
        {"core": reweighed(lambda logits: functional.normalize(_rectified(logits), p=1.0, dim=-1))},
    ),
    *named("one-in-the-denominator", "numerics.constant-value")(
        "a one is added to the sum of the exponentials",
        _NORMALISE,
        {"core": reweighed(_one_more)},
        {
            "core": reweighed(
                lambda logits: (
                    torch.exp(logits - row_largest(logits))
                    / (1.0 + torch.exp(logits - row_largest(logits)).sum(-1, keepdim=True))
                )
            )
        },
    ),
    *named("weights-not-normalised", "numerics.constant-value")(
        "the exponentials are not divided by their sum",
        _NORMALISE,
        {"core": reweighed(lambda logits: torch.exp(logits - row_largest(logits)))},
        {"core": reweighed(torch.exp)},
    ),
    *named("weights-divided-by-count", "numerics.constant-value")(
        "the exponentials are divided by the number of keys instead of their sum",
        _NORMALISE,
        {
            "core": reweighed(
                lambda logits: torch.exp(logits - row_largest(logits)) / logits.shape[-1]
            )
        },
        {"core": reweighed(lambda logits: torch.exp(logits) / logits.shape[-1])},
    ),
    *named("scores-over-their-sum", _CONVEX)(
        "the scores are divided by their sum without exponentials",
        "use softmax",
        {"core": reweighed(_over_their_sum)},
        {"core": reweighed(_over_their_size)},
    ),
    *named("weights-uniform", _GOLDEN)(
        "all keys that are not hidden weigh the same: the scores have no influence",
        "weigh the values by the softmax of the scores",
        {"core": reweighed(_uniform)},
    ),
    *named("weights-of-argmax", _GOLDEN)(
        "only the key with the largest logit is attended",
        "weigh the values by the softmax of the scores",
        {"core": reweighed(_hardest)},
    ),
    *named("weights-transposed", _GOLDEN)(
        "queries and keys of the weights are swapped before they meet the values",
        "multiply weights [.., queries, keys] by the values",
        {"core": _transposed_weights},
    ),
    *named("scores-of-cosines", _GOLDEN)(
        "queries and keys are normalised first: the scores are cosines",
        "take the dot products of the queries and keys as they are, or declare it: "
        'semantics=conformance.Semantics(qk_norm="l2")',
        {"heads": _normalised("query", "key")},
    ),
    *named("queries-normalised", _GOLDEN)(
        "the queries are normalised to unit length first",
        "take the dot products of the queries as they are",
        {"heads": _normalised("query")},
    ),
    *named("keys-normalised", _GOLDEN)(
        "the keys are normalised to unit length first",
        "take the dot products of the keys as they are",
        {"heads": _normalised("key")},
    ),
    *named("scores-of-distances", "numerics.key-shift")(
        "the scores are negative distances between query and key",
        "take dot products",
        {"core": rescored(lambda core: -_distances(core) * core.scale)},
        {"core": rescored(lambda core: -_distances(core).square() * core.scale)},
    ),
    *named("scores-without-sign", _GOLDEN)(
        "the sign of the scores is lost",
        "take the dot products as they are",
        {"core": rescored(lambda attention: plain_scores(attention).abs())},
    ),
    *named("values-normalised", "numerics.value-linear")(
        "the values are normalised to unit length",
        "take the values as they are",
        {"heads": _normalised("value")},
    ),
    *named(
        "values-clipped-to-half",
        _GOLDEN,
        where=lambda inputs: largest_size(inputs.value.detach()) > _HALF and not inputs.is_layer,
    )(
        "values past the largest number of float16 are clipped to it, whatever the dtype is",
        "clip nothing, or to the range of the tensor's own dtype",
        {"heads": lambda _call, heads: (*heads[:2], heads[2].clamp(-_HALF, _HALF))},
    ),
    *named("heads-output-rectified", "numerics.value-linear")(
        "an activation function is applied to the weighted sums: negative ones become zero",
        "leave it out",
        {"core": with_output(lambda attention: attention.output.relu())},
    ),
    *named("output-times-root-of-keys", _CONVEX)(
        "the weighted sums are multiplied by the root of the number of keys",
        "leave the factor out",
        {"core": _times_keys(0.5)},
    ),
    *named("output-divided-by-keys", _CONVEX)(
        "the weighted sums are divided by the number of keys: a mean where a sum is meant",
        "add the weighted values up",
        {"core": _times_keys(-1.0)},
    ),
    *named("output-times-keys", _CONVEX)(
        "the weighted sums are multiplied by the number of keys",
        "leave the factor out",
        {"core": _times_keys(1.0)},
    ),
    *named("answer-zero", _GOLDEN)(
        "the answer is zero",
        "return what was computed",
        {"output": lambda _call, output: torch.zeros_like(output)},
    ),
    *named("answer-nan", _GOLDEN)(
        "the answer is NaN",
        "look for what divides by zero, takes infinity off infinity, or is never written",
        {"output": lambda _call, output: torch.full_like(output, math.nan)},
    ),
)


def _padded_keys_counted(block: int) -> CoreChange:
    """Zeros fill the last block of keys up, and their logits of zero enter the sum."""

    def core(_call: DeclaredCall, attention: golden.Attention) -> golden.Attention | None:
        padding = -attention.logits.shape[-1] % block
        if not padding:
            return None
        logits = functional.pad(attention.logits, (0, padding), value=0.0)
        weights = golden.softmax(logits, sinks=attention.sinks)[..., : attention.logits.shape[-1]]
        return weighing(attention, weights)

    return core


def _keys_behind(block: int) -> Callable[[DeclaredCall], Inputs | None]:
    """Keys behind the last full block are never read."""

    def inputs_for(call: DeclaredCall) -> Inputs | None:
        length = call.inputs.geometry.key_length
        whole = length // block * block or length
        return hiding(call.inputs, torch.arange(length) < whole) if whole < length else None

    return inputs_for


def hiding(inputs: Inputs, admitted: Tensor) -> Inputs:
    """The same with further keys hidden."""
    keep = admitted if inputs.keep is None else inputs.keep & admitted
    return inputs.replace(keep=keep.reshape((1,) * (4 - keep.dim()) + keep.shape))


def _hides(place: int) -> Callable[[DeclaredCall], Inputs | None]:
    def inputs_for(call: DeclaredCall) -> Inputs | None:
        length = call.inputs.geometry.key_length
        if length <= 1:
            return None
        return hiding(call.inputs, torch.arange(length) != place % length)

    return inputs_for


TILES: Final[tuple[NamedMistake, ...]] = (
    *named("keys-behind-the-last-tile-lost", "numerics.any-length")(
        "keys behind the last full tile are never read",
        "round the number of tiles up and mask the rest of the last one",
        *({"inputs": _keys_behind(block)} for block in BLOCKS[1:]),
    ),
    *named("padding-of-the-last-tile-counted", _GOLDEN)(
        "the zeros that fill the last tile up enter the softmax as logits of zero",
        "set their logits to minus infinity",
        *({"core": _padded_keys_counted(block)} for block in BLOCKS[1:]),
    ),
    *named("last-key-lost", "equivariance.keys")(
        "the last key is never attended",
        "let the loop over keys reach the last one",
        {"inputs": _hides(-1)},
    ),
    *named("first-key-lost", "equivariance.keys")(
        "the first key is never attended",
        "let the loop over keys begin with the first one",
        {"inputs": _hides(0)},
    ),
)
