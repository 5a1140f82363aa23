"""Variances of the layer's gradients, before their last rounding."""

from __future__ import annotations

import torch
from torch import Tensor

from conformance._golden import golden

from .contract import Contract
from .layer import is_exact
from .layer_backward import LayerBackward, ProjectionGradient, ones_like_tokens
from .spread import Carried
from .statistical_gradients import Propagation, propagation
from .statistical_pairs import walk
from .storing import key_store_variance, query_store_variance, value_store_variance
from .visible_keys import from_head_rows, head_rows, sum_groups, unmerge_heads, unsplit_heads


def supports_statistics(semantics: golden.Semantics) -> bool:
    """Whether a head's rows are the tokens, which the statistical bound builds on."""
    return semantics.head_split != "reinterpret"


def layer_variances(backward: LayerBackward, spread: Propagation) -> dict[str, Tensor]:
    """The variance of each gradient, by its name; ``spread`` is that of the layer's core."""
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
    """The variance of each output of a projection, its roundings included; None where exact."""
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
    """The variance of storing the heads' gradients, of each head of a group and of their sum."""
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
    """What storing the heads' gradients and adding up over their channels does to an input's."""
    squares = part.matrix.square()
    products = part.gradient.square() @ squares
    terms, result = part.matrix.shape[0], part.gradient @ part.matrix
    total = walk(products, result, terms, contract.accumulator_roundoff)
    return total + rounding @ squares + 2.0 * contract.operand_roundoff**2 * products


def product_variance(erring: Tensor, exact: Tensor, variance: Tensor, contract: Contract) -> Tensor:
    """``erring^T exact`` over items and tokens ``[B, L, ..]``; each item's may be stored."""
    left, right = erring.flatten(0, 1), exact.flatten(0, 1)
    squares = left.square().mT @ right.square()
    total = walk(squares, left.mT @ right, left.shape[0], contract.accumulator_roundoff)
    total += variance.flatten(0, 1).mT @ right.square()
    total += 2.0 * contract.operand_roundoff**2 * squares
    return total + contract.unit_roundoff**2 * (erring.mT @ exact).square().sum(dim=0)


def _matrices(name: str, backward: LayerBackward) -> Tensor:
    """The rows of a projection for each query head: ``[H, D, in]``."""
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
    """``scale (dS K)^T x`` over the queries: ``[H, D, E]``."""
    core = backward.layer.core
    heads = core.scale**2 * spread.rows(core.key, spread.incoming.key)
    return (heads.mT @ tokens.square().unsqueeze(1)).sum(dim=0)


def _key_matrix(backward: LayerBackward, spread: Propagation, tokens: Tensor) -> Tensor:
    """``scale Q^T (dS x)`` over the queries: ``[Hkv, D, E]``."""
    core = backward.layer.core
    expanded = tokens.unsqueeze(1).expand(-1, core.query.shape[1], -1, -1)
    heads = core.query.square().mT @ spread.rows(expanded)
    if spread.incoming.query is not None:
        met = backward.gradients.score_gradient @ expanded
        heads = heads + spread.incoming.query.mT @ met.square()
    return core.scale**2 * _summed(heads, backward)


def _value_matrix(backward: LayerBackward, spread: Propagation, tokens: Tensor) -> Tensor:
    """``dO^T (P x)`` over the queries: ``[Hkv, Dv, E]``."""
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
    """The output matrix meets the merged heads, which are rounded themselves."""
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
