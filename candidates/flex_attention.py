"""``torch.nn.attention.flex_attention``: rules for scores and for blocks instead of masks.

Causality, windows and masks are a rule of the block mask; caps, biases and ALiBi are rules of the
scores. Uncompiled all scores are computed, which is right, and torch warns of it; compiled it is a
kernel: ``conformance check candidates/flex_attention.py --compile``. It has no gradients on a CPU
(torch 2.13).

Called as it is, it compiles itself with a backend that generates nothing, anew for other sizes:
minutes, and a TypeError where a call with one tensor as keys and values follows one whose rules
hold tensors (pytorch/pytorch#176211). So these calls ask torch to compile nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

import conformance
from conformance import Candidate, ExpectedFailure, Semantics

Score = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
PROMISES: Final[dict[str, Any]] = {
    "masks": ["keep", "bias"],
    "mask_shapes": ["BHQK"],
    "empty_rows": "zeros",
    "features": ["scale", "gqa", "softcap", "window"],
    "without": ["gradients"],
    "expected_failures": [
        ExpectedFailure(
            clause="mask.no-leak-nonfinite",
            reason="hidden values meet a weight of zero, and 0 * NaN is NaN",
        )
    ],
}


def _block_mask(
    sizes: tuple[int, int, int, int],
    device: torch.device,
    *,
    keep: Tensor | None,
    window: tuple[int, int] | None,
    causal: bool,
) -> BlockMask | None:
    """What a query may attend; it stands at the key that is as far from the end as it is."""
    if (keep is None and window is None and not causal) or 0 in sizes:
        return None
    offset = sizes[3] - sizes[2]
    left, right = (-1, -1) if window is None else window

    def rule(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        ahead = key - query - offset
        allowed = torch.ones_like(ahead, dtype=torch.bool)
        if causal:
            allowed = allowed & (ahead <= 0)
        if left >= 0:
            allowed = allowed & (ahead >= -left)
        if right >= 0:
            allowed = allowed & (ahead <= right)
        return allowed if keep is None else allowed & keep[batch, head, query, key]

    return create_block_mask(rule, *sizes, device=device)


def _scores(
    softcap: float | None, bias: Tensor | None, slopes: Tensor | None, offset: int
) -> Score | None:
    """What becomes of a scaled score: the cap first, then what is added."""
    if softcap is None and bias is None and slopes is None:
        return None

    def rule(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        if bias is not None:
            score = score + bias[batch, head, query, key]
        return score if slopes is None else score - slopes[head] * (query + offset - key).abs()

    return rule


def _run(query: Tensor, key: Tensor, value: Tensor, **rules: Any) -> Tensor:
    """The kernel where the caller is compiled, all scores elsewhere."""
    answer: Tensor
    if torch.compiler.is_compiling():
        answer = flex_attention(query, key, value, **rules)
        return answer
    with warnings.catch_warnings(), torch.compiler.set_stance("force_eager"):
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        answer = flex_attention(query, key, value, **rules)
    return answer


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    window: tuple[int, int] | None = None,
    slopes: Tensor | None = None,
) -> Tensor:
    """Attend ``[B, H, Lq, D]`` to ``[B, Hkv, Lk, D]`` and ``[B, Hkv, Lk, Dv]``.

    ``slopes [H]`` are those of ALiBi. Raises ValueError for a mask of another size than the
    scores, and for values of another length than the keys.
    """
    sizes = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    for mask in (keep, bias):
        if mask is not None and tuple(mask.shape) != sizes:
            msg = f"the scores have shape {sizes}, but a mask has {tuple(mask.shape)}"
            raise ValueError(msg)
    if key.shape[2] != value.shape[2]:
        msg = f"there are {key.shape[2]} keys, but {value.shape[2]} values"
        raise ValueError(msg)
    # Torch tries a rule on the first element of what it holds, and there may be none.
    ruled = 0 not in sizes
    return _run(
        query,
        key,
        value,
        score_mod=_scores(softcap, bias, slopes, key.shape[2] - query.shape[2]) if ruled else None,
        block_mask=_block_mask(sizes, query.device, keep=keep, window=window, causal=causal),
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _slopes(heads: int) -> list[float]:
    """Those of ALiBi (Press et al. 2022), where the number of heads is no power of two, too."""
    power = 2 ** (heads.bit_length() - 1)
    first = [2.0 ** (-8.0 * (head + 1) / power) for head in range(power)]
    between = [2.0 ** (-4.0 * (head + 1) / power) for head in range(0, 2 * power, 2)]
    return (first + between)[:heads]


flex: Final[Candidate] = conformance.core(name="flex_attention", causal="bottom-right", **PROMISES)(
    _attend
)


@conformance.core(causal="bottom-right", semantics=Semantics(alibi=True), **PROMISES)
def flex_alibi(query: Tensor, key: Tensor, value: Tensor, **use: Any) -> Tensor:
    """Linear biases as a rule of the scores."""
    slopes = torch.tensor(_slopes(query.shape[1]), dtype=query.dtype, device=query.device)
    return _attend(query, key, value, slopes=slopes, **use)
