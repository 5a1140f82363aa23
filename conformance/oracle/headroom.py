"""The rows that a candidate can compute at all: every intermediate value is representable."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from .._golden import golden
from ..declare.declaration import Declaration
from ..problems.materialise import TORCH_DTYPES
from ..tolerance import Contract, Gradient, largest_size, model
from ..tolerance.backward_pass import BackwardPass, backward_pass
from ..tolerance.prepared_gradients import as_prepared, largest_step, layer_backward
from ..tolerance.visible_keys import unmerge_heads

# Masks are filled in with -1e9 and less; where nothing a row sees is above this, that may decide.
FAR_BELOW: Final = 1e8


def finite_limit(declaration: Declaration, dtype: str) -> float:
    """The largest number that both the tensors' dtype and a declared accumulator can hold."""
    formats = {dtype, declaration.accumulate or dtype} - {"native"}
    return min(torch.finfo(TORCH_DTYPES[name]).max for name in formats)


def representable_rows(attention: golden.Attention, limit: float) -> Tensor:
    """Rows whose intermediate values stay clear of a largest number by ``model.HEADROOM``.

    Query, key and value (behind the projections of a layer), their squares where they are
    normalised, the unscaled products with all keys that a row attends, their sums with the bias,
    what a user's function makes of them, and the output. Returns bool ``[B, H, Lq]``.
    """
    room = model.HEADROOM * limit
    if _is_small(attention, room):
        return torch.ones_like(attention.empty)
    keys = _within(attention.key, room) & _within(attention.value, room)
    products = _products(attention).abs() <= room
    if attention.bias is not None:
        products = products & (attention.logits.abs() <= room)
    if attention.semantics.score_mod is not None:
        products = products & (attention.modified.abs() <= room)
    attended = (products | ~attention.allowed).all(dim=-1) & keys.all(dim=-1, keepdim=True)
    own = _within(attention.query, room) & representable_output(attention.output, limit)
    return attended & own & _squares(attention, room)


def is_below_fills(attention: golden.Attention) -> Tensor:
    """Rows, bool ``[B, H, Lq]``, whose visible logits all lie below the fills of hidden keys.

    A wrong computation may reach such logits though the right one does not: then the fill decides.
    """
    largest = attention.logits.amax(dim=-1)
    hides = ~attention.allowed.all(dim=-1)
    return (largest < -FAR_BELOW) & torch.isfinite(largest) & hides


def _is_small(attention: golden.Attention, room: float) -> bool:
    """Whether everything surely stays below a size, as the largest numbers alone say."""
    semantics, scale = attention.semantics, min(abs(attention.scale), 1.0)
    if semantics.qk_norm != "none" or semantics.score_mod is not None or scale == 0.0:
        return False
    tensors = [attention.query, attention.key, attention.value, attention.output]
    if attention.bias is not None:
        tensors.append(attention.logits.masked_fill(~attention.allowed, 0.0))
    sizes = map(largest_size, tensors)
    return largest_size(attention.scores) / scale <= room and all(size <= room for size in sizes)


def _squares(attention: golden.Attention, room: float) -> Tensor:
    """Rows whose own sum of squares, and that of every key, is small: a norm needs it."""
    if attention.semantics.qk_norm == "none":
        return torch.ones_like(attention.empty)
    query, key = (
        golden.joined_heads(heads.square(), attention.semantics)
        for heads in (attention.given_query, attention.given_key)
    )
    keys = (key.sum(dim=-1) <= room).all(dim=-1, keepdim=True)
    return (query.sum(dim=-1) <= room) & keys


def representable_output(output: Tensor, limit: float) -> Tensor:
    """Rows ``[..., L]`` of an answer ``[..., L, E]`` clear of ``limit``; NaN (no key) is clear."""
    room = model.HEADROOM * limit
    if largest_size(output) <= room:
        return torch.ones(output.shape[:-1], dtype=torch.bool)
    return _within(torch.where(torch.isnan(output), 0.0, output), room)


def _within(rows: Tensor, room: float) -> Tensor:
    """Rows of nothing but numbers of at most a size; NaN is none."""
    return (rows.abs() <= room).all(dim=-1)


def _products(attention: golden.Attention) -> Tensor:
    """Sizes of the products before the scale, or after one above 1; for no scale, of the norms."""
    if attention.scale != 0.0:
        return attention.scores / min(abs(attention.scale), 1.0)
    query = torch.linalg.vector_norm(attention.query, dim=-1)
    key = torch.linalg.vector_norm(attention.key, dim=-1)
    norms: Tensor = query.unsqueeze(-1) * key.unsqueeze(-2)
    return norms


def core_fits(attention: golden.Attention, upstream: Tensor, limit: float) -> bool:
    """Whether the steps back through attention proper are at most a sixteenth of a largest number.

    ``upstream [B, H, Lq, Dv]`` is the gradient of the answer.
    """
    return _steps_fit(attention, backward_pass(as_prepared(attention), upstream), limit)


def layer_fits(
    layer: golden.MultiHeadAttention, upstream: Tensor, contract: Contract, limit: float
) -> bool:
    """Whether the steps between the projections of a layer fit; ``upstream [B, Lq, Eo]``."""
    back = layer_backward(layer, upstream.double(), contract)
    return _steps_fit(layer.core, back.gradients, limit)


def gradients_fit(gradients: dict[str, Gradient], limit: float) -> bool:
    """Whether the gradients themselves, with their errors, are so small."""
    room = model.HEADROOM * limit
    sizes = (each.value.abs() + each.worst for each in gradients.values() if each.value.numel())
    return all(float(size.max()) <= room for size in sizes)


def largest_weight_gradient(
    evaluation: golden.Attention | golden.MultiHeadAttention, upstream: Tensor
) -> float:
    """The largest product of absolute output gradients and absolute values of an attended key.

    A backward pass computes the product for every pair, before the multiplication by a weight.
    """
    heads = upstream.double().abs()
    if isinstance(evaluation, golden.Attention):
        return _largest(heads @ evaluation.value.abs().mT)
    core, matrix = evaluation.core, evaluation.weights.o
    if matrix is not None:
        heads = heads @ matrix[:, : evaluation.merged.shape[-1]].abs()
    heads = unmerge_heads(heads, core.output.shape, core.semantics)
    return _largest(heads @ core.value.abs().mT)


def _steps_fit(core: golden.Attention, steps: BackwardPass, limit: float) -> bool:
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
    return all(size <= room for size in (*sizes, largest_step(core, steps)))  # NaN is not


def _largest(tensor: Tensor) -> float:
    return float(tensor.max()) if tensor.numel() else 0.0
