"""Whether every step of a backward pass stays clear of the largest number of a dtype."""

from __future__ import annotations

from torch import Tensor

from .._golden import golden
from ..tolerance import Contract, Gradient, model
from ..tolerance.backward_pass import BackwardPass, backward_pass
from ..tolerance.keys import unmerge_heads
from ..tolerance.layer_backward import layer_backward
from ..tolerance.prepared_gradients import as_met, largest_step


def core_fits(attention: golden.Attention, upstream: Tensor, limit: float) -> bool:
    """Whether the steps back through attention proper are at most a sixteenth of a largest number.

    ``upstream [B, H, Lq, Dv]`` is the gradient of the answer.
    """
    return _steps_fit(attention, backward_pass(as_met(attention), upstream), limit)


def layer_fits(
    layer: golden.MultiHeadAttention, upstream: Tensor, contract: Contract, limit: float
) -> bool:
    """The same of a layer between its projections; ``upstream [B, Lq, Eo]``."""
    back = layer_backward(layer, upstream.double(), contract)
    return _steps_fit(layer.core, back.gradients, limit)


def found_fits(found: dict[str, Gradient], limit: float) -> bool:
    """Whether the gradients themselves are, with their errors."""
    room = model.HEADROOM * limit
    sizes = (each.value.abs() + each.worst for each in found.values() if each.value.numel())
    return all(float(size.max()) <= room for size in sizes)


def largest_weight_gradient(
    evaluation: golden.Attention | golden.MultiHeadAttention, upstream: Tensor
) -> float:
    """The largest product of an output gradient with the value of a key that is read, signs apart.

    A backward pass computes it for every pair, and only then multiplies it by a weight.
    """
    heads = upstream.double().abs()
    if isinstance(evaluation, golden.Attention):
        return _largest(heads @ evaluation.value.abs().mT)
    core, matrix = evaluation.core, evaluation.weights.o
    if matrix is not None:
        heads = heads @ matrix[:, : evaluation.merged.shape[-1]].abs()
    heads = unmerge_heads(heads, core.output.shape, core.semantics)
    return _largest(heads @ core.value.abs().mT)


def _steps_fit(given: golden.Attention, steps: BackwardPass, limit: float) -> bool:
    """Sizes are added up without their signs: a candidate may add in any order."""
    attention = steps.attention  # with a sink as one more key
    weight_gradient = steps.output_gradient.abs() @ attention.value.abs().transpose(-1, -2)
    row_sum = (steps.weights * weight_gradient).sum(dim=-1, keepdim=True)
    scores = steps.weights * (weight_gradient + row_sum) * steps.slope.abs().clamp_min(1.0)
    query = scores @ attention.key.abs()
    key = scores.transpose(-1, -2) @ attention.query.abs()
    factor = max(abs(attention.scale), 1.0)
    sizes = map(_largest, (weight_gradient, row_sum, scores, factor * query, factor * key))
    room = model.HEADROOM * limit
    return all(size <= room for size in (*sizes, largest_step(given, steps)))  # NaN is not


def _largest(tensor: Tensor) -> float:
    return float(tensor.max()) if tensor.numel() else 0.0
