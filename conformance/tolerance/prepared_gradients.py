"""Gradients of heads normalised or turned before they meet, and of biased scores.

The gradients of the prepared heads have the bounds of ``worst_gradients``, where these heads carry
the errors of their preparation. Then the transposed Jacobian of the preparation is applied: with
magnitudes to the errors, and with roundings of its own. Heads behind the projections of a layer err
before preparation: the Jacobian of a normalisation moves, too. The backward pass of the layer, the
start of each stage's bound, is here as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from conformance._golden import golden

from . import model
from .backward_pass import BackwardPass, backward_pass
from .contract import Contract, gamma
from .gradient import Gradient
from .learned import (
    KEY,
    QUERY,
    factors_of,
    multiplied,
    multiplied_error,
    weight_of,
)
from .learned_gradients import temperature_gradient, weight_gradient
from .positions import rotated_error, rotation_of
from .prepared import (
    Norm,
    before_norm,
    divisor_drift,
    is_prepared,
    norm_of,
    normalised_error,
    prepared_error,
    prepared_errors,
    stepped,
    steps,
)
from .spread import EXACT, Carried
from .storing import UnstoredGradient, grouped_worst, stored
from .visible_keys import sum_groups, unmerge_heads, unsplit_heads
from .worst_gradients import WorstErrors


def as_prepared(attention: golden.Attention) -> golden.Attention:
    """The evaluation as if query and key had been given as they meet."""
    if not is_prepared(attention):
        return attention
    plain = attention.semantics.replace(qk_norm="none", rotary="none")
    return replace(
        attention,
        given_query=attention.query,
        given_key=attention.key,
        learned={},
        semantics=plain,
    )


def has_statistics(attention: golden.Attention) -> bool:
    """Whether a statistical bound is derived, too: heads and scores as given, no distances."""
    point = attention.semantics
    free = not point.alibi and point.relative == "none" and point.score_mod is None
    return not is_prepared(attention) and free


def unprepared_gradients(
    attention: golden.Attention,
    gradients: BackwardPass,
    worst: WorstErrors,
    contract: Contract,
    num_kv_heads: int,
) -> dict[str, Gradient]:
    """Return the gradients of ``given_query``, ``given_key`` and value, with worst-case bounds.

    ``gradients`` and ``worst`` are those of :func:`as_prepared`. Heads sharing a key may be added
    up before they are turned back, or after.
    """
    semantics, length = attention.semantics, attention.given_key.shape[-2]
    query, keys = turned_heads(attention, gradients, worst, contract, num_kv_heads)
    value = gradients.value[..., :length, :], worst.value[..., :length, :]
    return {
        "query": stored(UnstoredGradient(value=query[0], worst=query[1]), contract),
        "key": stored(_grouped(*keys, num_kv_heads, semantics, contract), contract),
        "value": stored(_grouped(*value, num_kv_heads, semantics, contract), contract),
    }


def turned_heads(
    attention: golden.Attention,
    gradients: BackwardPass,
    worst: WorstErrors,
    contract: Contract,
    num_kv_heads: int,
    carried: Carried = EXACT,
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return gradients of ``given_query`` and ``given_key`` by query head, with their errors.

    ``carried`` are the errors of these heads themselves, projected by a layer.
    """
    length = attention.given_key.shape[-2]
    key, key_error = gradients.key[..., :length, :], worst.key[..., :length, :]
    group = attention.query.shape[1] // num_kv_heads
    if group > 1:
        key_error = key_error + group * _once(key.abs() + key_error, contract)
    of_query = (QUERY, carried.query, attention.query_places)
    of_key = (KEY, carried.key, attention.key_places)
    return (
        _turned_back(*of_query, gradients.query, worst.query, attention, contract),
        _turned_back(*of_key, key, key_error, attention, contract),
    )


def pulled_back(attention: golden.Attention, gradients: BackwardPass) -> tuple[Tensor, Tensor]:
    """The golden gradients of ``given_query`` and ``given_key`` for each query head."""
    semantics, length = attention.semantics, attention.given_key.shape[-2]
    query, key = gradients.query, gradients.key[..., :length, :]
    if not is_prepared(attention):
        return query, key

    def prepare(positions: Tensor, role: str) -> Callable[[Tensor], Tensor]:
        def prepared(heads: Tensor) -> Tensor:
            # Copies of what inference made: autograd cannot save it.
            factors = [factor.clone() for factor in factors_of(attention, role)]
            for step in steps(semantics):
                heads = stepped(step, heads, positions, factors, attention)
            return heads

        return prepared

    return (
        pulled(attention.given_query, query, prepare(attention.query_places, QUERY)),
        pulled(attention.given_key, key, prepare(attention.key_places, KEY)),
    )


def _once(sizes: Tensor, contract: Contract) -> Tensor:
    """Return the error of one more store."""
    return contract.unit_roundoff * sizes + contract.underflow


def _grouped(
    value: Tensor,
    error: Tensor,
    num_kv_heads: int,
    semantics: golden.Semantics,
    contract: Contract,
) -> UnstoredGradient:
    """Add up the heads of a group; every partial sum may be stored."""
    worst = grouped_worst(value, error, num_kv_heads, semantics, contract)
    return UnstoredGradient(value=sum_groups(value, num_kv_heads, semantics), worst=worst)


def _turned_back(
    role: str,
    unprepared_error: Tensor | None,
    positions: Tensor,
    gradient: Tensor,
    error: Tensor,
    attention: golden.Attention,
    contract: Contract,
) -> tuple[Tensor, Tensor]:
    """Return the gradient of heads ``[B, H, L, D]`` before their preparation, and its error."""
    semantics = attention.semantics
    if not is_prepared(attention):
        return gradient, error
    unprepared = attention.given_query if role == QUERY else attention.given_key
    error = error + _once(gradient.abs() + error, contract)
    met, met_error = unprepared, unprepared_error  # the heads in front of the norm
    if semantics.normalises_late:
        turn = rotation_of(attention, positions, met.shape[-1], contract)
        met_error = rotated_error(met, met_error, turn, contract)
        met = golden.rotate_heads(met, positions, semantics, attention.rotary_tables)
    factors = factors_of(attention, role)[::-1]
    for step in reversed(steps(semantics)):
        if step == "norm":
            error = _error_behind_norm(met, met_error, gradient, error, semantics, contract)
            gradient = pulled(met, gradient, lambda heads: golden.normalise_heads(heads, semantics))
        elif step == "factors":
            error = _known(multiplied_error(gradient, error, factors, contract), error)
            gradient = multiplied(gradient, factors)
        else:
            gradient, error = _before_rotation(positions, gradient, error, attention, contract)
    return gradient, error


def _before_rotation(
    positions: Tensor,
    gradient: Tensor,
    error: Tensor,
    attention: golden.Attention,
    contract: Contract,
) -> tuple[Tensor, Tensor]:
    """Return the gradient of heads ``[B, H, L, D]`` before their rotation, and its error."""
    semantics = attention.semantics
    if semantics.rotary == "none":
        return gradient, error
    turn = rotation_of(attention, positions, gradient.shape[-1], contract)
    turned = pulled(
        torch.zeros_like(gradient),
        gradient,
        lambda heads: golden.rotate_heads(heads, positions, semantics, attention.rotary_tables),
    )
    return turned, rotated_error(gradient, error, turn, contract)


def learned_gradients(
    attention: golden.Attention,
    gradients: BackwardPass,
    worst: WorstErrors,
    contract: Contract,
    num_kv_heads: int,
) -> dict[str, Gradient]:
    """Return the gradients of learned factors of heads, with worst-case bounds.

    ``gradients`` and ``worst`` are those of :func:`as_prepared`.
    """
    length = attention.given_key.shape[-2]
    by_name: dict[str, Gradient] = {}
    key, key_error = gradients.key[..., :length, :], worst.key[..., :length, :]
    for role, positions, gradient, error, heads in (
        (QUERY, attention.query_places, gradients.query, worst.query, attention.query.shape[1]),
        (KEY, attention.key_places, key, key_error, num_kv_heads),
    ):
        arrived = error + _once(gradient.abs() + error, contract)
        turned = _before_rotation(positions, gradient, arrived, attention, contract)
        normalised = _normalised_with_error(attention, role, contract)
        weight, temperature = weight_of(attention, role), attention.learned.get("temperature")
        weights = [] if weight is None else [weight[:, None]]
        if role == QUERY and temperature is not None:
            weighed = (
                multiplied(normalised[0], weights),
                _known(multiplied_error(*normalised, weights, contract), normalised[1]),
            )
            score = gradients.score_gradient[..., :length], worst.score[..., :length]
            products = _products_before_temperature(attention, weights, contract)
            by_name["temperature"] = temperature_gradient(
                turned, weighed, score, products, contract
            )
            factor = [temperature[:, None, None]]
            grown = _known(multiplied_error(*turned, factor, contract), turned[1])
            turned = multiplied(turned[0], factor), grown
        if weight is not None:
            by_name[f"{role}_norm_weight"] = weight_gradient(
                attention, role, turned, normalised, heads, contract
            )
    return by_name


def _known(error: Tensor | None, otherwise: Tensor) -> Tensor:
    return otherwise if error is None else error


def _normalised_with_error(
    attention: golden.Attention, role: str, contract: Contract
) -> tuple[Tensor, Tensor]:
    semantics = attention.semantics
    heads = attention.given_query if role == QUERY else attention.given_key
    if semantics.qk_norm == "none":
        return heads, torch.zeros_like(heads)
    error = normalised_error(heads, None, semantics, contract)
    return golden.normalise_heads(heads, semantics), error


def _products_before_temperature(
    attention: golden.Attention, weights: list[Tensor], contract: Contract
) -> tuple[Tensor, Tensor]:
    """Return the scaled products of queries without temperature, and their error."""
    contract, scale = contract.at("score"), abs(attention.scale)
    plain = attention.run.edited(golden.Edit("tempered_query", lambda weighed_query: weighed_query))
    query, key = plain["query"].abs(), plain["key"].abs()
    query_error = prepared_error(
        attention, attention.given_query, None, attention.query_places, weights, contract
    )
    key_error = prepared_errors(attention, contract, EXACT).key
    size = query.shape[-1]
    relative = gamma(size + model.SCORE_ROUNDINGS, contract.accumulator_roundoff)
    relative += contract.operand_error
    relative += contract.pre_scaling_roundings * contract.unit_roundoff
    relative += model.SCORE_STORES * contract.score_roundoff
    reach = query if query_error is None else query + query_error
    met = key if key_error is None else key + key_error
    error = reach @ met.mT * (1.0 + relative) - query @ key.mT
    error = scale * error + contract.accumulator_underflow * (size + 2) * (1.0 + scale)
    return attention.scale * plain["products"], error


def pulled(unprepared: Tensor, gradient: Tensor, prepare: Callable[[Tensor], Tensor]) -> Tensor:
    """The gradient by what is prepared, in float64; of answers of inference mode, too."""
    with torch.inference_mode(mode=False), torch.enable_grad():
        leaf = unprepared.detach().double().clone().requires_grad_()
        (pulled,) = torch.autograd.grad((prepare(leaf) * gradient.clone()).sum(), leaf)
    return pulled


def _error_behind_norm(
    heads: Tensor,
    head_error: Tensor | None,
    gradient: Tensor,
    error: Tensor,
    semantics: golden.Semantics,
    contract: Contract,
) -> Tensor:
    """Return the error of ``(g - y <y, g> / m) / n``, y the normalised heads, n their divisor.

    m is the largest ``<y, y>``. For "layer" the mean is subtracted, too. y, n and the dot product
    have errors of their own; every step may be stored. Where the heads err themselves, so do y and
    n: y carries this error, and 1 / n may be ``wider`` times larger.
    """
    given = heads
    own = golden.joined_heads(normalised_error(heads, head_error, semantics, contract), semantics)
    heads, gradient, error = (
        golden.joined_heads(each, semantics) for each in (heads, gradient, error)
    )
    head_error = None if head_error is None else golden.joined_heads(head_error, semantics)
    norm = norm_of(heads, semantics, contract)
    wider = 1.0 + divisor_drift(heads, head_error, semantics)
    size, most = norm.result.abs(), norm.largest**2
    exact = gradient.abs()
    dot = (size * exact).sum(-1, keepdim=True) / most
    moved = ((size + own) * error + own * exact).sum(-1, keepdim=True) / most
    carried = error + (size + own) * moved + own * dot
    # What variances of one pass and centred heads are computed from.
    reached = size + own
    if semantics.qk_norm == "layer":
        reached = reached + _before_centring(heads, head_error, norm) * wider / norm.divisor
    upper = exact + error
    terms = upper + reached * ((reached * upper).sum(-1, keepdim=True) / most)
    unit = contract.accumulator_roundoff
    relative = model.NORM_BACKWARD_ROUNDINGS * (unit + contract.unit_roundoff)
    relative += 2.0 * gamma(heads.shape[-1] + model.NORM_ROUNDINGS, unit)
    # Its sum of squares may be as much larger as its divisor is smaller: four powers in all.
    rounded = norm.factor * wider**4
    factor = wider * (1.0 + rounded) ** model.NORM_BACKWARD_FACTORS - 1.0
    total = (carried * (1.0 + factor) + (relative * wider + factor) * terms) / norm.divisor
    if semantics.qk_norm == "layer":
        total = total + total.mean(-1, keepdim=True) + relative * wider * terms / norm.divisor
    lost = (contract.underflow + contract.accumulator_underflow) * (heads.shape[-1] + 1)
    inverse = 1.0 + wider / norm.divisor
    total = total + lost * inverse**model.NORM_BACKWARD_FACTORS * (1.0 + reached)
    return golden.parted_heads(total, given, semantics)


def _before_centring(heads: Tensor, error: Tensor | None, norm: Norm) -> Tensor:
    """Return the sizes of heads and of their mean, before its subtraction."""
    sizes = heads.abs() + (heads - norm.centred).abs()
    return sizes if error is None else sizes + error + error.mean(-1, keepdim=True)


def largest_step(attention: golden.Attention, gradients: BackwardPass) -> float:
    """The largest number on the way through a normalisation, signs apart; 0.0 without one."""
    semantics = attention.semantics
    if semantics.qk_norm == "none":
        return 0.0
    length, largest = attention.given_key.shape[-2], 0.0
    query, key = before_norm(attention)
    pairs = ((query, gradients.query), (key, gradients.key[..., :length, :]))
    for heads, gradient in pairs:
        if heads.numel():
            heads, gradient = (golden.joined_heads(each, semantics) for each in (heads, gradient))  # noqa: PLW2901 (a norm's own)
            inverse = 1.0 + 1.0 / golden.norms(heads, semantics)
            sizes = (heads.abs() * gradient.abs()).sum(-1, keepdim=True)
            steps = sizes * (1.0 + heads.abs()) * inverse**model.NORM_BACKWARD_FACTORS
            largest = max(largest, float(steps.max()))
    return largest


@dataclass(frozen=True, kw_only=True, eq=False)
class ProjectionGradient:
    """The backward pass of one of the three input projections, all float64.

    ``tokens [B, L, in]`` is its input (named ``input_name``), ``matrix [out, in]`` its matrix,
    ``gradient [B, L, out]`` the gradient of its output, ``num_heads`` its heads; ``bias`` says
    whether a bias takes part.
    """

    input_name: str
    tokens: Tensor
    matrix: Tensor
    gradient: Tensor
    num_heads: int
    bias: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerBackward:
    """Golden values of the backward pass: parts "q", "k", "v", the core's and the output's.

    ``gradients`` are those of the heads as they meet, ``heads`` (by "q", "k", "v") those of the
    projected heads, for each query head: turned back and behind their normalisation.
    """

    layer: golden.MultiHeadAttention
    contract: Contract
    output_gradient: Tensor
    output_matrix: Tensor | None
    output_width: int
    output_bias: bool
    gradients: BackwardPass
    heads: dict[str, Tensor]
    parts: dict[str, ProjectionGradient]

    @property
    def semantics(self) -> golden.Semantics:
        """The point of the layer."""
        return self.layer.core.semantics

    @property
    def num_kv_heads(self) -> int:
        """The number of key/value heads."""
        return self.parts["k"].num_heads

    def widened(self, product: Tensor) -> Tensor:
        """A gradient of the output matrix with zeros in the columns that no head meets."""
        return pad(product, (0, self.output_width - product.shape[-1]))


def layer_backward(
    layer: golden.MultiHeadAttention, output_gradient: Tensor, contract: Contract
) -> LayerBackward:
    """Evaluate it. Raises ValueError at a point of the semantics that has no bound."""
    core, weights, matrix = layer.core, layer.weights, None
    merged = output_gradient
    if weights.o is not None:
        matrix = weights.o[:, : layer.merged.shape[-1]]
        merged = output_gradient @ matrix
    heads = unmerge_heads(merged, core.output.shape, core.semantics)
    gradients = backward_pass(as_prepared(core), heads)
    query_heads, key_heads = pulled_back(core, gradients)
    by_head = {"q": query_heads, "k": key_heads, "v": gradients.value}
    num_kv_heads = weights.v.shape[0] // core.value.shape[-1]
    parts = {}
    for place, (name, gradient) in enumerate(by_head.items()):
        count = gradient.shape[1] if name == "q" else num_kv_heads
        grouped = sum_groups(gradient, count, core.semantics)
        parts[name] = ProjectionGradient(
            input_name=("query", "key", "value")[place],
            tokens=layer.tokens[place],
            matrix=getattr(weights, name),
            gradient=unsplit_heads(grouped, core.semantics),
            num_heads=count,
            bias=getattr(weights, f"{name}_bias") is not None,
        )
    return LayerBackward(
        layer=layer,
        contract=contract,
        output_gradient=output_gradient,
        output_matrix=matrix,
        output_width=0 if weights.o is None else weights.o.shape[1],
        output_bias=weights.o_bias is not None,
        gradients=gradients,
        heads=by_head,
        parts=parts,
    )


def ones_like_tokens(tokens: Tensor) -> Tensor:
    """Return the factor of a bias: ones, ``[B, L, 1]``."""
    return torch.ones(*tokens.shape[:-1], 1, dtype=torch.float64)
