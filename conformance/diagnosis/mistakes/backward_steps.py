"""A backward pass step by step, in float64, and the wrong steps that mistakes are made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..._golden import golden
from ...oracle.oracle import evaluate, known_weights
from ...problems.inputs import Inputs
from ...tolerance.backward_pass import backward_pass
from ...tolerance.keys import sum_groups
from .named import NotExpressible

Found = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class Pass:
    """What a backward pass starts from.

    ``attention`` is the right one, ``upstream [B, H, Lq, Dv]`` the gradient of its output, and
    ``heads`` are those of query, key and value before keys that nobody attends are set to zero.
    """

    inputs: Inputs
    semantics: golden.Semantics
    attention: golden.Attention
    upstream: Tensor
    heads: tuple[Tensor, Tensor, Tensor]

    def other_attention(self, **changes: Any) -> golden.Attention:
        """The attention proper of the same heads with some options changed."""
        options = self.inputs.replace(scale=self.attention.scale, sinks=None).options
        given: dict[str, Any] = {**options, "semantics": self.semantics, **changes}
        return golden.attend(*self.heads, **given)


@dataclass(frozen=True, kw_only=True)
class WrongBackward:
    """A mistake in a backward pass, under a stable name.

    text, fix, clause
        As for :class:`NamedMistake`.
    upstream
        Another gradient of the heads' output.
    attention
        Another attention proper, whose weights are recomputed.
    weights
        Other weights than that has.
    row_term
        Another D, of the pass, the weights and dP.
    scores
        Other gradients of the scores than dS.
    scales
        What the gradients of query and key are multiplied by.
    shared
        How the gradients of query heads become those of key/value heads.
    heads
        Other gradients of the heads, by "query", "key" and "value".
    matrix, bias
        The gradient of a projection ``[out, in]`` and of its bias from that of its output
        ``[B, L, out]`` and its input.
    final
        Other gradients in the end, by the names of what is given.
    """

    name: str
    text: str
    fix: str
    clause: str = "gradients.golden"
    upstream: Callable[[Pass], Tensor] | None = None
    attention: Callable[[Pass], golden.Attention] | None = None
    weights: Callable[[Pass], Tensor] | None = None
    row_term: Callable[[Pass, Tensor, Tensor], Tensor] | None = None
    slope: Callable[[Pass], Tensor] | None = None
    scores: Callable[[Pass, Tensor], Tensor] | None = None
    scales: Callable[[Pass], tuple[float, float]] | None = None
    shared: Callable[[Pass, Tensor], Tensor] | None = None
    heads: Callable[[Pass, Found], Found] | None = None
    matrix: Callable[[Tensor, Tensor], Tensor] | None = None
    bias: Callable[[Tensor], Tensor] | None = None
    final: Callable[[Pass, Found], Found] | None = None
    special_of: tuple[str, ...] = field(default=())


def give_back(
    inputs: Inputs, semantics: golden.Semantics, upstream: Tensor, wrong: WrongBackward
) -> Found:
    """The gradients of a candidate that makes a mistake, by the names of what it is given.

    Raises NotExpressible where it cannot be made, or the layer is cut into heads in another way.
    """
    try:
        with torch.no_grad():
            return _give_back(inputs, semantics, upstream.double(), wrong)
    except (ValueError, RuntimeError, IndexError) as error:
        raise NotExpressible from error


def _give_back(
    inputs: Inputs, semantics: golden.Semantics, upstream: Tensor, wrong: WrongBackward
) -> Found:
    evaluation = evaluate(inputs, semantics)
    if isinstance(evaluation, golden.Attention):
        asked = Pass(
            inputs=inputs,
            semantics=semantics,
            attention=evaluation,
            upstream=upstream,
            heads=(inputs.query.double(), inputs.key.double(), inputs.value.double()),
        )
        return _finally(asked, _heads(asked, wrong), wrong)
    if (semantics.head_split, semantics.head_merge) != ("blocks", "blocks"):
        raise NotExpressible
    weights = known_weights(inputs)
    core = evaluation.core
    merged = golden.merge_heads(core.output, semantics)
    behind = upstream if weights.o is None else upstream @ weights.o.double()
    heads = golden.split_heads(behind, inputs.geometry.num_heads, semantics)
    asked = Pass(
        inputs=inputs,
        semantics=semantics,
        attention=core,
        upstream=heads,
        heads=_projected(inputs, semantics),
    )
    found: Found = {}
    if weights.o is not None:
        found["o"] = _matrix(upstream, merged, wrong)
        found["o_bias"] = _bias(upstream, wrong)
    for name, each in _heads(asked, wrong).items():
        role, tokens = name[0], getattr(inputs, name).double()
        gradient = golden.merge_heads(each, semantics)
        found[name] = gradient @ getattr(weights, role).double()
        found[role] = _matrix(gradient, tokens, wrong)
        found[f"{role}_bias"] = _bias(gradient, wrong)
    return _finally(asked, found, wrong)


def _projected(inputs: Inputs, semantics: golden.Semantics) -> tuple[Tensor, Tensor, Tensor]:
    """The heads of a layer behind its projections."""
    tokens, sizes = (inputs.query, inputs.key, inputs.value), inputs.geometry
    projected = golden.project_tokens(tokens, known_weights(inputs), semantics)
    return golden.cut_heads(projected, sizes.num_heads, sizes.num_kv_heads, semantics)


def _finally(asked: Pass, found: Found, wrong: WrongBackward) -> Found:
    if wrong.final is not None:
        found = wrong.final(asked, found)
    mode = asked.inputs.mode
    if mode == "self":
        found["x"] = found.pop("query") + found.pop("key") + found.pop("value")
    elif mode == "memory":
        found["context"] = found.pop("key") + found.pop("value")
    return found


def _matrix(gradient: Tensor, tokens: Tensor, wrong: WrongBackward) -> Tensor:
    if wrong.matrix is not None:
        return wrong.matrix(gradient, tokens)
    return gradient.flatten(0, 1).mT @ tokens.flatten(0, 1)


def _bias(gradient: Tensor, wrong: WrongBackward) -> Tensor:
    return gradient.sum(dim=(0, 1)) if wrong.bias is None else wrong.bias(gradient)


def _heads(asked: Pass, wrong: WrongBackward) -> Found:
    """Gradients of the heads, with one key/value head for those that share it."""
    if wrong.upstream is not None:
        asked = dataclasses.replace(asked, upstream=wrong.upstream(asked))
    attention = asked.attention if wrong.attention is None else wrong.attention(asked)
    right = backward_pass(attention, asked.upstream)
    weights = right.weights if wrong.weights is None else wrong.weights(asked)
    row_term = (weights * right.weight_gradient).sum(dim=-1, keepdim=True)
    if wrong.row_term is not None:
        row_term = wrong.row_term(asked, weights, right.weight_gradient)
    slope = right.slope if wrong.slope is None else wrong.slope(asked)
    scores = weights * (right.weight_gradient - row_term) * slope
    for_query = scores if wrong.scores is None else wrong.scores(asked, scores)
    scale = attention.scale
    query_scale, key_scale = (scale, scale) if wrong.scales is None else wrong.scales(asked)
    key = key_scale * (scores.mT @ attention.query)
    value = weights.mT @ asked.upstream
    shared = _added_up if wrong.shared is None else wrong.shared
    found = {
        "query": query_scale * (for_query @ attention.key),
        "key": shared(asked, key),
        "value": shared(asked, value),
    }
    return found if wrong.heads is None else wrong.heads(asked, found)


def _added_up(asked: Pass, heads: Tensor) -> Tensor:
    return sum_groups(heads, asked.inputs.geometry.num_kv_heads, asked.semantics)


def cut(*names: str) -> Callable[[Pass, Found], Found]:
    """No gradient for some of the heads, or of the weights."""

    def cut(_asked: Pass, found: Found) -> Found:
        return {n: torch.zeros_like(t) if n in names else t for n, t in found.items()}

    return cut


def times(factor: float) -> Callable[[Pass], Tensor]:
    """The gradient of the output, multiplied."""
    return lambda asked: factor * asked.upstream


def mean_over_items(asked: Pass) -> Tensor:
    """That gradient divided by the number of items."""
    return asked.upstream / asked.upstream.shape[0]


def first_item(asked: Pass) -> Tensor:
    """That of the first item, zeros for the others."""
    found = torch.zeros_like(asked.upstream)
    found[:1] = asked.upstream[:1]
    return found


def without_mask(asked: Pass) -> golden.Attention:
    """Without masks other than additive ones, which hide keys by their values."""
    inputs = asked.inputs
    return asked.other_attention(keep=inputs.keep if inputs.mask_form == "bias" else None)


def unnormalised(asked: Pass, free: golden.Attention) -> Tensor:
    """Weights by the log-sum-exp of the admitted logits: what is hidden comes on top."""
    kept = asked.attention.logits.masked_fill(~asked.attention.allowed, -torch.inf)
    total = kept.logsumexp(dim=-1, keepdim=True)
    weights = torch.exp(free.logits - torch.where(total.isneginf(), torch.inf, total))
    return weights.masked_fill(~free.allowed, 0.0)


def unmasked(asked: Pass) -> Tensor:
    """Weights in which masks other than additive ones hide nothing."""
    return unnormalised(asked, without_mask(asked))


def all_unmasked(asked: Pass) -> Tensor:
    """Weights in which no mask hides anything."""
    return unnormalised(asked, asked.other_attention(keep=None))


def uncausal(asked: Pass) -> Tensor:
    """Weights in which no key comes too late."""
    return unnormalised(asked, asked.other_attention(causal=False))


def without(**changes: Any) -> Callable[[Pass], golden.Attention]:
    """The attention proper with some options changed."""
    return lambda asked: asked.other_attention(**changes)


def top_left(asked: Pass) -> golden.Attention:
    """The attention proper with its causal diagonal in the other corner."""
    other = {"bottom-right": "top-left", "top-left": "bottom-right"}
    point = asked.semantics
    return asked.other_attention(
        semantics=point.replace(causal_alignment=other[point.causal_alignment])
    )


def rolled(asked: Pass, weights: Tensor, gradient: Tensor) -> Tensor:
    """The row term of the row before."""
    del asked
    return (weights * gradient).sum(dim=-1, keepdim=True).roll(1, dims=2)


def of_first_head(asked: Pass, weights: Tensor, gradient: Tensor) -> Tensor:
    """The row term of the first head, for every head."""
    del asked
    return (weights * gradient).sum(dim=-1, keepdim=True)[:, :1].expand_as(weights[..., :1])


def default_scale(asked: Pass) -> tuple[float, float]:
    """The scale of a call that gives none, for query and key."""
    sizes = asked.inputs.geometry
    scale = golden.scale_value(
        asked.semantics,
        head_size=sizes.head_size,
        value_head_size=sizes.value_head_size,
        num_heads=sizes.num_heads,
    )
    return scale, scale


def slope(asked: Pass) -> Tensor:
    """The derivative of cap and function, which are not forgotten."""
    return backward_pass(asked.attention, asked.upstream).slope


def uncapped_slope(asked: Pass) -> Tensor:
    """The derivative of the function alone, where there is one: that of the cap is forgotten."""
    found = backward_pass(asked.attention, asked.upstream).function_slope
    return torch.ones_like(asked.attention.scores) if found is None else found


def unmodified(asked: Pass) -> golden.Attention:
    """The attention proper without its function of scores."""
    return asked.other_attention(semantics=asked.semantics.replace(score_mod=None))


def unmodified_slope(asked: Pass) -> Tensor:
    """The derivative of the cap alone: that of the function is forgotten."""
    point = asked.attention.semantics.replace(score_mod=None)
    plain = dataclasses.replace(asked.attention, semantics=point)
    return backward_pass(plain, asked.upstream).slope


def scales(
    query: Callable[[float], float], key: Callable[[float], float]
) -> Callable[[Pass], tuple[float, float]]:
    """Functions of the scale, for query and key."""
    return lambda asked: (query(asked.attention.scale), key(asked.attention.scale))


def one(_scale: float) -> float:
    """No scale at all."""
    return 1.0


def same(scale: float) -> float:
    """The scale as it is."""
    return scale


def squared(scale: float) -> float:
    """The scale twice."""
    return scale * scale


def grouped(total: Callable[[Tensor], Tensor]) -> Callable[[Pass, Tensor], Tensor]:
    """Of the neighbours ``[B, Hkv, group, L, D]`` that read one head."""

    def shared(asked: Pass, heads: Tensor) -> Tensor:
        return total(heads.unflatten(1, (asked.inputs.geometry.num_kv_heads, -1)))

    return shared


def tiled(asked: Pass, heads: Tensor) -> Tensor:
    """Query heads in turns, added up."""
    tiled: Tensor = heads.unflatten(1, (-1, asked.inputs.geometry.num_kv_heads)).sum(dim=1)
    return tiled


def swapped(_asked: Pass, found: Found) -> Found:
    """Key and value have changed places, where their shapes are one."""
    if found["key"].shape != found["value"].shape:
        return found
    return {**found, "key": found["value"], "value": found["key"]}


def transposed(_asked: Pass, scores: Tensor) -> Tensor:
    """The gradients of the scores transposed, where they are square."""
    return scores.mT if scores.shape[-1] == scores.shape[-2] else scores


def matrix_transposed(gradient: Tensor, tokens: Tensor) -> Tensor:
    """The gradient of a matrix transposed, where that is square."""
    found: Tensor = gradient.flatten(0, 1).mT @ tokens.flatten(0, 1)
    return found.mT if found.shape[0] == found.shape[1] else found


def matrix_of(items: slice) -> Callable[[Tensor, Tensor], Tensor]:
    """The gradient of a matrix from some items of the batch."""

    def matrix(gradient: Tensor, tokens: Tensor) -> Tensor:
        found: Tensor = gradient[items].flatten(0, 1).mT @ tokens[items].flatten(0, 1)
        return found

    return matrix


def matrix_averaged(gradient: Tensor, tokens: Tensor) -> Tensor:
    """The gradient of a matrix as a mean over the batch."""
    return matrix_of(slice(None))(gradient, tokens) / gradient.shape[0]
