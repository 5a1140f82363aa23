"""The values that a computation passes through on its way: those of the golden, or of a mistake."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...problems.inputs import Inputs
from ..mistaken_answer import Combination, mistaken_attention, mistaken_call
from ..mistakes import DeclaredCall
from ..mistakes._steps import biased, capped_scores, plain_scores, unmasked_logits
from ..mistakes.named_mistake import Heads

# An exponential of base two is one of base e of a logit times this.
_LOG2_E: Final = 1.4426950408889634


@dataclass(frozen=True, eq=False)
class Step:
    """One value: float64 or bool, its axes by letter.

    B is the items, H the heads, N and G the key/value heads and the heads that share one, Q, K and
    D the queries, keys and channels, E the channels of tokens, P the parts of a packed projection.
    Where it is NaN nothing is known of it if it is ``partial``. Of one that is ``ordered`` queries
    come before keys: transposed it is another table. One that is ``inner`` to a softmax is wrong
    where what enters that is; so is a table of masks that leaves some of them out.
    """

    axes: str
    value: Tensor
    partial: bool = False
    ordered: bool = False
    inner: bool = False


def right_steps(declared: golden.Semantics, inputs: Inputs, answer: Tensor) -> list[Step]:
    """What a right computation of an answer may pass through, in any of the usual ways."""
    call = DeclaredCall(inputs=inputs.replace(point=declared), semantics=declared)
    _, attention = mistaken_attention(call, (), every_key=True)
    return [
        *_of_heads(call, call.projected_heads()),
        *_of_attention(call, attention),
        *_of_places(call),
        *_of_masks(call, parts_are_known=True),
        *_of_output(call, attention.output),
        _final(inputs, answer),
    ]


def mistaken_steps(
    declared: golden.Semantics, made: Combination, inputs: Inputs, answer: Tensor
) -> list[Step]:
    """What a computation of a mistaken answer passes through, as the mistakes are acted out.

    Raises what acting them out does.
    """
    call = mistaken_call(declared, made, inputs.replace(point=declared))
    before, core = mistaken_attention(call, made, every_key=True)
    seen = torch.where(torch.isneginf(core.logits), torch.nan, core.logits)
    heads = call.projected_heads()
    for mistake in made:
        if mistake.heads is not None:
            heads = mistake.heads(call, heads) or heads
    return [
        *_of_heads(call, heads),
        *_of_attention(call, before),
        *_of_places(call),
        *_of_masks(call),
        *_of_table(~torch.isneginf(core.logits)),
        Step("BHQK", core.logits),
        Step("BHQK", seen, partial=True),
        Step("BHQK", core.weights),
        *_of_output(call, core.output),
        _final(inputs, answer),
    ]


def _of_heads(call: DeclaredCall, heads: Heads) -> Iterator[Step]:
    """Query, key and value: projected, cut, normalised and turned, shared among heads."""
    query, key, value = heads
    count, point = query.shape[1], call.semantics
    if call.inputs.is_layer:
        yield from (Step("BQE", tokens.double()) for tokens in _tokens(call))
    turned = golden.position_heads(query, key, point)
    normalised = tuple(golden.normalise_heads(each, point) for each in (query, key))
    yield from (Step("BHQD", each) for each in (query, normalised[0], turned[0]))
    for each in (key, normalised[1], turned[1], value):
        yield Step("BHQD", each)
        if each.shape[1] != count:
            yield Step("BHQD", golden.repeat_heads(each, count, point))
    for factor in (call.scale, abs(call.scale) ** 0.5):
        yield Step("BHQD", factor * turned[0])
        yield Step("BHQD", factor * turned[1])
    for some in (heads, heads[1:]):
        if len({tuple(each.shape) for each in some}) == 1:
            yield Step("PBHQD", torch.stack(some))


def _tokens(call: DeclaredCall) -> tuple[Tensor, ...]:
    """The inputs of a layer, and what its matrices make of them before biases."""
    inputs = call.inputs
    tokens, weights = (inputs.query, inputs.key, inputs.value), inputs.weights
    if weights is None:
        return tokens
    matrices = (weights.q, weights.k, weights.v)
    products = (golden.project(*pair, None) for pair in zip(tokens, matrices, strict=True))
    return (*tokens, *products)


def _of_attention(call: DeclaredCall, attention: golden.Attention) -> Iterator[Step]:
    """From dot products to weights."""
    point, bias = call.semantics, attention.bias
    products = attention.query @ attention.key.transpose(-1, -2)
    scores, capped = plain_scores(attention), capped_scores(attention)
    if bias is not None and point.bias_order == "before-scale":
        finite = torch.where(torch.isneginf(bias), 0.0, bias)
        scores = attention.scale * (products + finite)
    changed = golden.modify(capped, point)
    tables = [products, scores, capped, changed, biased(attention, capped)]
    if attention.softcap is not None:
        tables += [scores / attention.softcap, torch.tanh(scores / attention.softcap)]
    tables += [attention.alibi] if attention.alibi is not None else []
    if bias is not None:
        tables += [unmasked_logits(attention), biased(attention, capped) + bias]
    logits, weights = attention.logits, attention.weights
    largest = logits.amax(dim=-1, keepdim=True)
    largest = torch.where(torch.isneginf(largest), 0.0, largest)
    exponentials = torch.exp(logits - largest)
    total = exponentials.sum(dim=-1, keepdim=True)
    tables += [logits, _LOG2_E * logits, weights]
    empty = torch.isneginf(logits).all(dim=-1, keepdim=True)
    tables += [torch.where(empty, other, weights) for other in (0.0, torch.nan)]
    yield from (Step("BHQK", table) for table in tables)
    for table in (logits - largest, exponentials):
        yield Step("BHQK", table, inner=True)
    for row in (logits.amax(dim=-1, keepdim=True), largest, total, torch.log(total) + largest):
        yield Step("BHQ", row.squeeze(-1), inner=True)
    yield Step("BHQD", exponentials @ attention.value)


def _of_masks(call: DeclaredCall, *, parts_are_known: bool = False) -> Iterator[Step]:
    """Which keys are seen: by each of mask, causality and window, and by several of them.

    Those by some of them alone are inner steps where that ``parts_are_known`` to be such.
    """
    inputs, point = call.inputs, call.semantics
    given = [table for table in (_keep(call), _of_bias(inputs)) if table is not None]
    options: list[tuple[bool, tuple[int, int] | None]] = []
    causal, window = inputs.causal, inputs.window
    if causal:
        options.append((True, None))
    if window is not None:
        before, after = window
        options += [(False, one) for one in ((before, -1), (-1, after), window)]
        options += [(True, one) for one in ((before, -1), window)] if causal else []
    sizes = inputs.geometry
    structures = [
        golden.structural_mask(
            sizes.query_length, sizes.key_length, causal=flag, window=pair, semantics=point
        )
        for flag, pair in options
    ]
    wanted: list[Tensor] = []
    for some in _subsets(given):
        for structure in (None, *structures):
            parts = [*some, *([] if structure is None else [structure])]
            if parts:
                table = parts[0]
                for part in parts[1:]:
                    table = table & part
                wanted.append(table)
    for table in wanted:
        # The last one is made of all that there is.
        incomplete = parts_are_known and table is not wanted[-1]
        yield from _of_table(table.expand(inputs.score_shape), part=incomplete)
    if inputs.bias is not None:
        yield Step("BHQK", inputs.bias.double().expand(inputs.score_shape))


def _of_places(call: DeclaredCall) -> Iterator[Step]:
    """Where queries stand among the keys, and how far from each of them."""
    sizes, point = call.inputs.geometry, call.semantics
    places = golden.query_positions(sizes.query_length, sizes.key_length, point).double()
    ahead = torch.arange(sizes.key_length) - places[:, None]
    yield Step("Q", places)
    for table in (ahead, -ahead, ahead.abs(), -ahead.abs()):
        yield Step("QK", table, ordered=True)


def _of_table(seen: Tensor, *, part: bool = False) -> Iterator[Step]:
    """Which keys are seen, which are hidden, and what is added to hide them."""
    for table in (seen, ~seen, torch.where(seen, 0.0, -torch.inf).double()):
        yield Step("BHQK", table, ordered=True, inner=part)


def _subsets(tables: list[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    for count in range(len(tables) + 1):
        yield from itertools.combinations(tables, count)


def _keep(call: DeclaredCall) -> Tensor | None:
    keep = call.inputs.keep
    return ~keep if keep is not None and call.semantics.mask_polarity == "drop" else keep


def _of_bias(inputs: Inputs) -> Tensor | None:
    return None if inputs.bias is None else ~torch.isneginf(inputs.bias)


def _of_output(call: DeclaredCall, output: Tensor) -> Iterator[Step]:
    """The output of the heads, and of a layer before the bias of its last projection."""
    yield Step("BHQD", output)
    weights = call.inputs.weights
    if call.inputs.is_layer and weights is not None and weights.o is not None:
        merged = golden.merge_heads(output, call.semantics)
        yield Step("BQE", merged)
        yield Step("BQE", golden.project(merged, weights.o[:, : merged.shape[-1]], None))


def _final(inputs: Inputs, answer: Tensor) -> Step:
    return Step("BQE" if inputs.is_layer else "BHQD", answer.double())
