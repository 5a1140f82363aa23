"""Bounds of the layer's gradients: by its inputs, its four matrices and their biases.

They are worst-case bounds, and variances where statistics hold.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import torch
from torch import Tensor

from conformance._golden import golden

from .attention_bound import one_sided_bound
from .contract import Contract
from .gradient import Gradient, GradientStatistics, Scaling
from .gradient_scaling import Slopes, WeightedSum, noise, roundings, slopes
from .gradients import one_of
from .layer import head_errors, is_exact, projection_bound
from .prepared import is_prepared, prepared_errors
from .prepared_gradients import (
    LayerBackward,
    ProjectionGradient,
    has_statistics,
    layer_backward,
    ones_like_tokens,
    turned_heads,
)
from .spread import Carried, deviations_for
from .statistical_gradients import Propagation, propagation
from .statistical_pairs import walk
from .storing import (
    UnstoredGradient,
    grouped_worst,
    key_store_variance,
    query_store_variance,
    spread_of,
    value_store_variance,
)
from .visible_keys import from_head_rows, head_rows, sum_groups, unmerge_heads, unsplit_heads
from .worst_gradients import worst_errors


def supports_statistics(semantics: golden.Semantics) -> bool:
    """Whether a head's rows are the tokens, which the statistical bound builds on."""
    return semantics.head_split != "reinterpret"


def layer_variances(backward: LayerBackward, spread: Propagation) -> dict[str, Tensor]:
    """Return the variance of each gradient, by name; ``spread`` is the core's."""
    inputs = {
        "q": _query_inputs(backward, spread),
        "k": _key_inputs(backward, spread),
        "v": _value_inputs(backward, spread),
    }
    products = {"q": _query_matrix, "k": _key_matrix, "v": _value_matrix}
    variances: dict[str, Tensor] = {}
    for name, part in backward.parts.items():
        rounding = _rounding(name, backward)
        variances[part.input_name] = inputs[name] + _into_input(part, rounding, backward.contract)
        sources = {name: part.tokens}
        if part.bias:
            sources[f"{name}_bias"] = ones_like_tokens(part.tokens)
        for result, tokens in sources.items():
            own = from_head_rows(products[name](backward, spread, tokens), backward.semantics)
            total = own + product_variance(part.gradient, tokens, rounding, backward.contract)
            variances[result] = total.squeeze(-1) if result.endswith("_bias") else total
    if backward.output_matrix is not None:
        variances |= _output_variances(backward, spread)
    return variances


def projection_variance(
    tokens: Tensor, matrix: Tensor, bias: Tensor | None, contract: Contract
) -> Tensor | None:
    """Return the variance of a projection's output, its roundings included; None if exact."""
    if contract.operand_roundoff == 0.0 and is_exact(matrix, bias):
        return None
    product = tokens @ matrix.mT
    result = product if bias is None else product + bias
    squares = tokens.square() @ matrix.square().mT
    variance = walk(squares, result, matrix.shape[1], contract.accumulator_roundoff)
    variance += 2.0 * contract.operand_roundoff**2 * squares
    stores = result.square() if bias is None else result.square() + product.square()
    return variance + stores * contract.unit_roundoff**2 + 2.0 * contract.underflow**2


def layer_propagation(backward: LayerBackward, deviations: float) -> Propagation:
    """What the core of a layer propagates: projections and output matrix round before it."""
    weights, semantics, contract = backward.layer.weights, backward.semantics, backward.contract
    core, carried = backward.layer.core, {}
    for name, part in backward.parts.items():
        bias = getattr(weights, f"{name}_bias")
        variance = projection_variance(part.tokens, part.matrix, bias, contract)
        if variance is not None:
            split = golden.split_heads(variance, part.num_heads, semantics)
            carried[name] = golden.repeat_heads(split, core.query.shape[1], semantics)
    gradient = None
    if backward.output_matrix is not None:
        matrix = backward.output_matrix.mT.contiguous()
        gradient = projection_variance(backward.output_gradient, matrix, None, contract)
        if gradient is not None:
            gradient = unmerge_heads(gradient, core.output.shape, semantics)
    incoming = Carried(
        query=carried.get("q"),
        key=carried.get("k"),
        value=carried.get("v"),
        output_gradient=gradient,
    )
    return propagation(backward.gradients, contract, incoming, deviations)


def _rounding(name: str, backward: LayerBackward) -> Tensor:
    """Return the variance of storing heads' gradients: of each head of a group and their sum."""
    exact, contract = backward.gradients, backward.contract
    part, unit = backward.parts[name], contract.unit_roundoff
    heads = {"q": exact.query, "k": exact.key, "v": exact.value}[name]
    group = heads.shape[1] // part.num_heads
    stores = contract.pre_scaling_roundings if name != "v" else 0
    stores += group if group > 1 else 0
    blocks = {"q": query_store_variance, "k": key_store_variance, "v": value_store_variance}
    stored = heads.square() * (stores * unit**2) + blocks[name](exact, contract)
    each = sum_groups(stored, part.num_heads, backward.semantics)
    own = (unit * part.gradient).square() + (1 + group) * contract.underflow**2
    return unsplit_heads(each, backward.semantics) + own


def _into_input(part: ProjectionGradient, rounding: Tensor, contract: Contract) -> Tensor:
    """Return the variance an input's gradient gets from stores and the sum over channels."""
    squares = part.matrix.square()
    products = part.gradient.square() @ squares
    terms, result = part.matrix.shape[0], part.gradient @ part.matrix
    total = walk(products, result, terms, contract.accumulator_roundoff)
    return total + rounding @ squares + 2.0 * contract.operand_roundoff**2 * products


def product_variance(erring: Tensor, exact: Tensor, variance: Tensor, contract: Contract) -> Tensor:
    """Return the variance of ``erring^T exact`` over items and tokens ``[B, L, ..]``.

    Each item's product may be stored.
    """
    left, right = erring.flatten(0, 1), exact.flatten(0, 1)
    squares = left.square().mT @ right.square()
    total = walk(squares, left.mT @ right, left.shape[0], contract.accumulator_roundoff)
    total += variance.flatten(0, 1).mT @ right.square()
    total += 2.0 * contract.operand_roundoff**2 * squares
    return total + contract.unit_roundoff**2 * (erring.mT @ exact).square().sum(dim=0)


def _matrices(name: str, backward: LayerBackward) -> Tensor:
    """Return the rows of a projection for each query head: ``[H, D, in]``."""
    part, semantics = backward.parts[name], backward.semantics
    rows = head_rows(part.matrix, part.num_heads, semantics).unsqueeze(0)
    return golden.repeat_heads(rows, backward.layer.core.query.shape[1], semantics)[0]


def _through(variance: Tensor | None, matrix: Tensor) -> Tensor | None:
    return None if variance is None else variance @ matrix.square()


def _query_inputs(backward: LayerBackward, spread: Propagation) -> Tensor:
    matrix, core = _matrices("q", backward), backward.layer.core
    heads = spread.rows(core.key @ matrix, _through(spread.incoming.key, matrix))
    return core.scale**2 * heads.sum(dim=1)


def _key_inputs(backward: LayerBackward, spread: Propagation) -> Tensor:
    matrix, core = _matrices("k", backward), backward.layer.core
    heads = spread.columns(core.query @ matrix, _through(spread.incoming.query, matrix))
    return core.scale**2 * heads.sum(dim=1)


def _value_inputs(backward: LayerBackward, spread: Propagation) -> Tensor:
    matrix, gradient = _matrices("v", backward), backward.gradients.output_gradient
    carried = _through(spread.incoming.output_gradient, matrix)
    return spread.weight_columns(gradient @ matrix, carried).sum(dim=1)


def _query_matrix(backward: LayerBackward, spread: Propagation, tokens: Tensor) -> Tensor:
    """Return the variance of ``scale (dS K)^T x`` over the queries: ``[H, D, E]``."""
    core = backward.layer.core
    heads = core.scale**2 * spread.rows(core.key, spread.incoming.key)
    return (heads.mT @ tokens.square().unsqueeze(1)).sum(dim=0)


def _key_matrix(backward: LayerBackward, spread: Propagation, tokens: Tensor) -> Tensor:
    """Return the variance of ``scale Q^T (dS x)`` over the queries: ``[Hkv, D, E]``."""
    core = backward.layer.core
    expanded = tokens.unsqueeze(1).expand(-1, core.query.shape[1], -1, -1)
    heads = core.query.square().mT @ spread.rows(expanded)
    if spread.incoming.query is not None:
        met = backward.gradients.score_gradient @ expanded
        heads = heads + spread.incoming.query.mT @ met.square()
    return core.scale**2 * _summed(heads, backward)


def _value_matrix(backward: LayerBackward, spread: Propagation, tokens: Tensor) -> Tensor:
    """Return the variance of ``dO^T (P x)`` over the queries: ``[Hkv, Dv, E]``."""
    core = backward.layer.core
    expanded = tokens.unsqueeze(1).expand(-1, core.query.shape[1], -1, -1)
    gradient = backward.gradients.output_gradient
    heads = gradient.square().mT @ spread.weight_rows(expanded)
    if spread.incoming.output_gradient is not None:
        heads = heads + spread.incoming.output_gradient.mT @ (core.weights @ expanded).square()
    return _summed(heads, backward)


def _summed(heads: Tensor, backward: LayerBackward) -> Tensor:
    return sum_groups(heads, backward.num_kv_heads, backward.semantics).sum(dim=0)


def _output_variances(backward: LayerBackward, spread: Propagation) -> dict[str, Tensor]:
    """Return variances of the output matrix and bias; the merged heads are rounded themselves."""
    core, contract, semantics = backward.layer.core, backward.contract, backward.semantics
    heads = spread.weight_rows(core.value, spread.incoming.value)
    heads = heads + (contract.unit_roundoff * core.output).square() + contract.underflow**2
    merged = golden.merge_heads(heads, semantics)
    product = product_variance(backward.layer.merged, backward.output_gradient, merged, contract).mT
    variances = {"o": backward.widened(product)}
    if backward.output_bias:
        ones = ones_like_tokens(backward.output_gradient)
        exact = torch.zeros_like(backward.output_gradient)
        total = product_variance(backward.output_gradient, ones, exact, contract)
        variances["o_bias"] = total.squeeze(-1)
    return variances


def through_layer(backward: LayerBackward, derivatives: Slopes | None) -> LayerBackward:
    """Return the layer's backward pass with derivatives in place of its parts' gradients.

    The derivatives are by the scale of the scores with ``derivatives``, else by the scale of the
    backward pass. The output bias, whose gradient no scale moves, is left out.
    """
    gradients, layer = backward.gradients, backward.layer
    if derivatives is None:
        value, output = torch.zeros_like(gradients.value), torch.zeros_like(layer.core.output)
        derivatives = Slopes(query=gradients.query, key=gradients.key, value=value, output=output)
    parts = {
        name: replace(
            part,
            gradient=unsplit_heads(
                sum_groups(
                    getattr(derivatives, part.input_name), part.num_heads, backward.semantics
                ),
                backward.semantics,
            ),
        )
        for name, part in backward.parts.items()
    }
    layer = replace(layer, merged=golden.merge_heads(derivatives.output, backward.semantics))
    return replace(backward, parts=parts, layer=layer, output_bias=False)


def layer_noise(name: str, backward: LayerBackward, spread: Propagation, weights: Tensor) -> float:
    """Return one deviation of the weighted sum of a gradient's errors.

    ``name`` is an input ("query" ...), a matrix ("q" ..., "o") or a bias ("q_bias" ...);
    ``weights`` has the gradient's shape. Counts the roundings before the products of the last
    projection.
    """
    return backward.contract.sides * noise(_through_projection(name, backward, weights), spread)


def _through_projection(name: str, backward: LayerBackward, weights: Tensor) -> WeightedSum:
    semantics, core = backward.semantics, backward.layer.core
    if name == "o":
        merged = backward.output_gradient @ weights[:, : backward.layer.merged.shape[-1]]
        return WeightedSum(output=unmerge_heads(merged, core.output.shape, semantics))
    for matrix, part in backward.parts.items():
        if name == part.input_name:
            projected = weights @ part.matrix.mT
        elif name == matrix:
            projected = part.tokens @ weights.mT
        elif name == f"{matrix}_bias":
            projected = weights.expand_as(part.gradient)
        else:
            continue
        heads = golden.split_heads(projected, part.num_heads, semantics)
        every = golden.repeat_heads(heads, core.query.shape[1], semantics)
        return WeightedSum(**{part.input_name: every})
    msg = f"no gradient is named {name!r}"
    raise ValueError(msg)


def worst_layer_errors(backward: LayerBackward) -> dict[str, Tensor]:
    """Return the worst-case error of each gradient, by name."""
    semantics, contract = backward.semantics, backward.contract
    errors = head_errors(backward.layer, contract)
    carried = replace(errors, output_gradient=_output_gradient_error(backward))
    heads = _projected_errors(backward, carried)
    by_name: dict[str, Tensor] = {}
    for name, part in backward.parts.items():
        grouped = grouped_worst(
            backward.heads[name], heads[name], part.num_heads, semantics, contract
        )
        error = _stored(unsplit_heads(grouped, semantics), part.gradient, contract)
        by_name |= _part_errors(name, part, error, contract)
    if backward.output_matrix is not None:
        by_name |= _output_errors(backward, carried)
    return by_name


def _projected_errors(backward: LayerBackward, carried: Carried) -> dict[str, Tensor]:
    """Return the errors of the projected heads' gradients, for each query head.

    ``carried`` are errors of the projected heads, before normalisation and rotation.
    """
    core, contract, exact = backward.layer.core, backward.contract, backward.gradients
    met = prepared_errors(core, contract.at("score"), carried)
    worst = worst_errors(exact, contract, met)
    if not is_prepared(core):
        return {"q": worst.query, "k": worst.key, "v": worst.value}
    turned = turned_heads(core, exact, worst, contract, backward.num_kv_heads, carried)
    (_, query_error), (_, key_error) = turned
    return {"q": query_error, "k": key_error, "v": worst.value}


def _stored(error: Tensor, exact: Tensor, contract: Contract) -> Tensor:
    unit = contract.unit_roundoff
    return error * (1.0 + unit) + unit * exact.abs() + contract.underflow


def _output_gradient_error(backward: LayerBackward) -> Tensor | None:
    """Return the error that heads' gradients carry from the output projection."""
    if backward.output_matrix is None:
        return None
    matrix = backward.output_matrix.mT.contiguous()
    error = projection_bound(backward.output_gradient, matrix, None, backward.contract)
    if error is None:
        return None
    return unmerge_heads(error, backward.layer.core.output.shape, backward.semantics)


def _part_errors(
    name: str, part: ProjectionGradient, error: Tensor, contract: Contract
) -> dict[str, Tensor]:
    """Return the errors of a projection's gradients: input (a product), matrix and bias (sums)."""
    matrix = part.matrix.mT.contiguous()
    by_input = projection_bound(part.gradient, matrix, None, contract, incoming=error)
    by_name = {name: weight_error(part.gradient, part.tokens, error, contract)}
    if by_input is not None:  # for the type checker: with an incoming error there is always one
        by_name[part.input_name] = by_input
    if part.bias:
        ones = ones_like_tokens(part.tokens)
        by_name[f"{name}_bias"] = weight_error(part.gradient, ones, error, contract).squeeze(-1)
    return by_name


def weight_error(erring: Tensor, exact: Tensor, error: Tensor | None, contract: Contract) -> Tensor:
    """The error of ``erring^T exact``, added up over items and tokens ``[B, L, ..]``.

    Each item's product may be stored before the items are added up.
    """
    left, right = erring.flatten(0, 1).mT, exact.flatten(0, 1).mT.contiguous()
    incoming = torch.zeros_like(left) if error is None else error.flatten(0, 1).mT
    total = projection_bound(left, right, None, contract, incoming=incoming)
    each = (erring.mT @ exact).abs().sum(dim=0)
    if total is None:  # for the type checker: with an incoming error there is always one
        return each
    return total.mul_(1.0 + contract.unit_roundoff).add_(each, alpha=contract.unit_roundoff)


def _output_errors(backward: LayerBackward, carried: Carried) -> dict[str, Tensor]:
    """Return the errors of the output matrix and bias; the merged heads err themselves."""
    core, contract = backward.layer.core, backward.contract
    error = one_sided_bound(core, contract, carried)
    merged = golden.merge_heads(error, backward.semantics)
    product = weight_error(backward.layer.merged, backward.output_gradient, merged, contract).mT
    by_name = {"o": backward.widened(product)}
    if backward.output_bias:
        ones = ones_like_tokens(backward.output_gradient)
        by_name["o_bias"] = weight_error(backward.output_gradient, ones, None, contract).squeeze(-1)
    return by_name


def layer_gradients(
    layer: golden.MultiHeadAttention, output_gradient: Tensor, contract: Contract
) -> dict[str, Gradient]:
    """Return the gradients of the layer for ``output_gradient [B, Lq, Eo]``, with their bounds.

    The output gradient is exact, and for the statistical bound independent in each element. Results
    are named "query", "key", "value" (inputs), "q", "k", "v", "o" and "q_bias" ... (participating
    weights), in the shapes of their tensors. Where one tensor is query, key and value,
    ``add_gradients`` combines the three.

    Where heads are reinterpreted memory, are normalised or turned before they meet, or stand beside
    distances, the statistical bound is the worst case.

    Raises ValueError at a point of the semantics without a bound, and for an output gradient of
    another shape.

    Derived in docs/tolerance.md.
    """
    if output_gradient.shape != layer.output.shape:
        msg = (
            f"output_gradient has shape {list(output_gradient.shape)}, "
            f"not the output's {list(layer.output.shape)}"
        )
        raise ValueError(msg)
    backward = layer_backward(layer, output_gradient.double(), contract)
    values, worst = _values(backward), worst_layer_errors(backward)
    has_spread = supports_statistics(backward.semantics) and has_statistics(layer.core)
    deviations = deviations_for(sum(each.numel() for each in values.values()))

    @cache
    def statistics() -> dict[str, GradientStatistics]:
        # Made again: intermediate values would lie in memory until somebody asks.
        again = layer_backward(layer, output_gradient.double(), contract)
        spread = layer_propagation(again, deviations)
        variances = layer_variances(again, spread)
        by_name = {
            name: spread_of(
                UnstoredGradient(value=exact, worst=worst[name], variance=variances[name]),
                contract,
                deviations,
            )
            for name, exact in values.items()
        }
        scaling = _scaling(again, spread)
        return by_name | {name: by_name[name].with_scaling(each) for name, each in scaling.items()}

    # The worst case has counted the last rounding already.
    return {
        name: Gradient(
            value=exact,
            worst=contract.sides * worst[name],
            derive=partial(one_of, statistics, name) if has_spread else None,
        )
        for name, exact in values.items()
    }


def _scaling(backward: LayerBackward, spread: Propagation) -> dict[str, Scaling]:
    """Return the effect of the logit scale's error on each gradient but the output bias's."""
    direct = _values(through_layer(backward, None))
    indirect = _values(through_layer(backward, slopes(backward.gradients)))
    scale, common = roundings(backward.gradients, backward.contract)
    return {
        name: Scaling(
            direct=direct[name],
            indirect=indirect[name],
            scale_rounding=scale,
            common_rounding=common,
            noise=partial(layer_noise, name, backward, spread),
        )
        for name in direct
    }


def _values(backward: LayerBackward) -> dict[str, Tensor]:
    values: dict[str, Tensor] = {}
    for name, part in backward.parts.items():
        values[part.input_name] = part.gradient @ part.matrix
        flat = part.gradient.flatten(0, 1)
        values[name] = flat.mT @ part.tokens.flatten(0, 1)
        if part.bias:
            values[f"{name}_bias"] = flat.sum(dim=0)
    if backward.output_matrix is not None:
        flat = backward.output_gradient.flatten(0, 1)
        product = flat.mT @ backward.layer.merged.flatten(0, 1)
        values["o"] = backward.widened(product)
        if backward.output_bias:
            values["o_bias"] = flat.sum(dim=0)
    return values
