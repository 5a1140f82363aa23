"""Moves the logits of one kept key far below the hidden keys, or the hidden ones far above."""

from __future__ import annotations

import torch
from torch import Tensor

from .._golden import golden
from ..problems.inputs import Inputs
from ..problems.materialise import mask_sizes
from ..tolerance import model
from .oracle import evaluate

# The fields that decide the pairing of heads, their rotation, and the factor of their products.
_SCORING = (
    "head_split",
    "group_order",
    "rotary",
    "rotary_base",
    "rotary_fraction",
    "rotary_scaling",
    "rotary_amplitude",
    "causal_alignment",
    "scale",
    "scale_factor",
)

# A power of two near the root of the largest logits of float16: neither factor is extreme.
_ONE_CHANNEL = 64.0


def single_key_inputs(
    drawn: Inputs, *, live: int, target: float, low: bool
) -> tuple[Inputs, Tensor | None]:
    """One key kept for all rows; its logit near ``-target`` (low), or hidden ones near ``target``.

    Returns the inputs and the rows to judge: in self-attention the enlarged tokens are queries too,
    and their own rows are left out, since these rows see squared logits.
    """
    chosen = torch.arange(drawn.geometry.key_length) == live
    keep = chosen.expand(mask_sizes(drawn.mask_shape, drawn.geometry))
    enlarged = chosen if low else ~chosen
    inputs = _stretched(drawn.replace(keep=keep, bias=None), enlarged, target, low=low)
    if inputs.mode != "self":
        return inputs, None
    return inputs, (~enlarged).reshape(-1, 1).expand(inputs.output_shape)


def keep_one_channel(drawn: Inputs, *, live: int) -> Inputs:
    """The inputs of a core with the queries, and one key, zero outside their first channel.

    The products are then no sums: nothing on the way to a logit exceeds the logit but the product
    before the scale.
    """
    query, key = torch.zeros_like(drawn.query), drawn.key.clone()
    query[..., 0] = _ONE_CHANNEL
    key[..., live, :] = 0.0
    key[..., live, 0] = 1.0
    return drawn.with_tokens(query=query, key=key)


def lowered_key(drawn: Inputs, *, live: int, target: float) -> Inputs:
    """One key's logits near ``-target``.

    In self-attention the enlarged token is a query too and its own logit is squared: the logit is
    then as low as its sign allows.
    """
    chosen = torch.arange(drawn.geometry.key_length) == live
    if drawn.mode != "self":
        return _stretched(drawn, chosen, target, low=True)
    own = unmasked_scores(drawn)[..., live, live]
    factor = (target / max(float(own.abs().max()), model.SMALLEST_OWN_LOGIT)) ** 0.5
    factors = torch.where(chosen, factor, 1.0).reshape(-1, 1)
    return drawn.with_tokens(key=(drawn.key.double() * factors).to(drawn.key.dtype))


def unmasked_scores(inputs: Inputs) -> Tensor:
    """The golden's scaled dot products ``[B, H, Lq, Lk]`` without any mask, heads turned."""
    free = inputs.without_mask().replace(causal=False, window=None)
    scored = {name: getattr(inputs.point, name) for name in _SCORING}
    evaluation = evaluate(free, golden.STANDARD.replace(**scored))
    core = evaluation if isinstance(evaluation, golden.Attention) else evaluation.core
    return core.scores[..., : inputs.geometry.key_length]  # those of a memory stay apart


def _stretched(inputs: Inputs, keys: Tensor, target: float, *, low: bool) -> Inputs:
    """Scale some key tokens until their largest logit reaches a target, signed low or high."""
    query = inputs.query
    if inputs.mode != "self":
        # Queries that point the same way see the same key far below, or far above.
        sizes = torch.arange(1, query.shape[-2] + 1).remainder(3).double() + 1.0
        query = (query[..., :1, :].double() * sizes.reshape(-1, 1)).to(query.dtype)
    aligned = inputs.with_tokens(query=query)
    scores = unmasked_scores(aligned)[..., keys]
    largest = float(scores.abs().max()) if scores.numel() else 0.0
    if largest == 0.0:
        return aligned
    upward = float(scores.flatten()[scores.abs().argmax()]) > 0
    sign = -1.0 if low == upward else 1.0
    factors = torch.where(keys, sign * target / largest, 1.0).reshape(-1, 1)
    key = (aligned.key.double() * factors).to(aligned.key.dtype)
    return aligned.with_tokens(key=key)
