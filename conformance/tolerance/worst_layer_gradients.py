"""The worst-case errors of the layer's gradients, their last rounding included."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from conformance._golden import golden

from .contract import Contract
from .core import one_sided_bound
from .gradients import grouped_worst
from .heads import unmerge_heads, unsplit_heads
from .incoming import Incoming
from .layer import head_errors
from .layer_backward import LayerBackward, Part, ones_like_tokens
from .prepared import is_prepared, prepared_errors
from .prepared_gradients import turned_heads
from .projection import projection_bound
from .worst_gradients import worst_errors


def worst_layer_errors(backward: LayerBackward) -> dict[str, Tensor]:
    """The error of each gradient, by its name."""
    core, semantics, contract = backward.layer.core, backward.semantics, backward.contract
    query, key, value = head_errors(core, backward.tokens(), backward.weights, semantics, contract)
    carried = Incoming(
        query=query, key=key, value=value, output_gradient=_output_gradient_error(backward)
    )
    heads = _projected_errors(backward, carried)
    found: dict[str, Tensor] = {}
    for name, part in backward.parts.items():
        grouped = grouped_worst(
            backward.heads[name], heads[name], part.num_heads, semantics, contract
        )
        error = _stored(unsplit_heads(grouped, semantics), part.gradient, contract)
        found |= _part_errors(name, part, error, contract)
    if backward.output_matrix is not None:
        found |= _output_errors(backward, carried)
    return found


def _projected_errors(backward: LayerBackward, carried: Incoming) -> dict[str, Tensor]:
    """The errors of the projected heads' gradients, for each query head.

    ``carried`` are those of the projected heads, before they are normalised and turned.
    """
    core, contract, exact = backward.layer.core, backward.contract, backward.gradients
    query, key = prepared_errors(core, contract.at("score"), carried.query, carried.key)
    worst = worst_errors(exact, contract, replace(carried, query=query, key=key))
    if not is_prepared(backward.semantics):
        return {"q": worst.query, "k": worst.key, "v": worst.value}
    turned = turned_heads(core, exact, worst, contract, backward.num_kv_heads, carried)
    (_, query_error), (_, key_error) = turned
    return {"q": query_error, "k": key_error, "v": worst.value}


def _stored(error: Tensor, exact: Tensor, contract: Contract) -> Tensor:
    unit = contract.unit_roundoff
    return error * (1.0 + unit) + unit * exact.abs() + contract.underflow


def _output_gradient_error(backward: LayerBackward) -> Tensor | None:
    """What the gradient of the heads carries from the output projection."""
    if backward.output_matrix is None:
        return None
    matrix = backward.output_matrix.mT.contiguous()
    error = projection_bound(backward.output_gradient, matrix, None, backward.contract)
    if error is None:
        return None
    return unmerge_heads(error, backward.layer.core.output.shape, backward.semantics)


def _part_errors(name: str, part: Part, error: Tensor, contract: Contract) -> dict[str, Tensor]:
    """An input's gradient is one more projection, a matrix's a sum over items and tokens."""
    matrix = part.matrix.mT.contiguous()
    by_input = projection_bound(part.gradient, matrix, None, contract, incoming=error)
    found = {name: weight_error(part.gradient, part.tokens, error, contract)}
    if by_input is not None:  # for the type checker: with an incoming error there is always one
        found[part.input_name] = by_input
    if part.bias:
        ones = ones_like_tokens(part.tokens)
        found[f"{name}_bias"] = weight_error(part.gradient, ones, error, contract).squeeze(-1)
    return found


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


def _output_errors(backward: LayerBackward, carried: Incoming) -> dict[str, Tensor]:
    """The output matrix meets the merged heads, which err themselves."""
    core, contract = backward.layer.core, backward.contract
    error = one_sided_bound(core, contract, carried.query, carried.key, carried.value)
    merged = golden.merge_heads(error, backward.semantics)
    product = weight_error(backward.layer.merged, backward.output_gradient, merged, contract).mT
    missing = backward.output_width - product.shape[-1]
    found = {"o": pad(product, (0, missing))}
    if backward.output_bias:
        ones = ones_like_tokens(backward.output_gradient)
        found["o_bias"] = weight_error(backward.output_gradient, ones, None, contract).squeeze(-1)
    return found
