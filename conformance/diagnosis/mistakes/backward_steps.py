"""A backward pass step by step, in float64: what a candidate with some mistake gives back.

With dO the gradient of the answer and P the weights: dP = dO V^T, D = rowsum(P * dP), dS = P * (dP
- D) * slope, dQ = scale dS K, dK = scale dS^T Q, dV = P^T dO (Dao et al. 2022, appendix B.2). A
mistake replaces some of the steps.
"""

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
from ...tolerance.golden_gradients import golden_gradients
from ...tolerance.heads import sum_groups
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
        inputs = self.inputs
        options: dict[str, Any] = {
            "keep": inputs.keep,
            "bias": None if inputs.bias is None else inputs.bias.double(),
            "causal": inputs.causal,
            "scale": self.attention.scale,
            "softcap": inputs.softcap,
            "window": inputs.window,
            "semantics": self.semantics,
        }
        return golden.attend(*self.heads, **{**options, **changes})


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
    weights, sizes = known_weights(inputs), inputs.geometry
    point = semantics
    query = golden.project(inputs.query, weights.q, weights.q_bias if point.query_bias else None)
    key = golden.project(inputs.key, weights.k, weights.k_bias if point.key_bias else None)
    value = golden.project(inputs.value, weights.v, weights.v_bias if point.value_bias else None)
    return (
        golden.split_heads(query, sizes.num_heads, point),
        golden.split_heads(key, sizes.num_kv_heads, point),
        golden.split_heads(value, sizes.num_kv_heads, point),
    )


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
    right = golden_gradients(attention, asked.upstream)
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
