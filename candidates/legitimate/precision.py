"""Other formats inside than outside, each as it is declared."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from conformance import ExpectedFailure

from ._kit import NAN_SPREADS, OVERFLOWS, admitted, check, core, factor, soften

HALVES = ["float16", "bfloat16"]
WIDER_KEYS = ExpectedFailure(
    clause="mixed.undeclared-input*",  # a glob: in one of the dtypes, not in each
    reason="the scale is folded into the query in its own dtype, whatever that of the keys is",
)


@core(dtypes=["float32", "float64"])
def float64_inside(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Everything in double precision, rounded once: better than is asked for."""
    scores = query.double() @ key.double().mT * factor(query, scale)
    weights = soften(scores, admitted(query, key, keep, causal=causal))
    return (weights @ value.double()).to(query.dtype)


# A glob: in one of the dtypes, and not for every mixture.
MIXTURES_ROUNDED = ExpectedFailure(
    clause="mixed.undeclared-input*",
    reason="scores and weights are rounded to the dtype of the values, and so is the answer",
)


@core(dtypes=HALVES, scores="fused", accumulate="float32")
def halves_widened_once(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Half precision in and out, single precision in between."""
    scores = query.float() @ key.float().mT * factor(query, scale)
    weights = soften(scores, admitted(query, key, keep, causal=causal))
    return (weights @ value.float()).to(query.dtype)


@core(
    dtypes=HALVES,
    scores="fused",
    accumulate="float32",
    expected_failures=[NAN_SPREADS, MIXTURES_ROUNDED],
)
def halves_with_rounded_weights(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """The weights go back to half precision for their product, as on tensor cores."""
    scores = query.float() @ key.float().mT * factor(query, scale)
    weights = soften(scores, admitted(query, key, keep, causal=causal)).to(value.dtype)
    return (weights.float() @ value.float()).to(query.dtype)


@core(dtypes=[*HALVES, "float32"], expected_failures=[NAN_SPREADS, OVERFLOWS])
def softmax_in_single(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Products in the dtype of the inputs, softmax in single precision: LLaMA in transformers."""
    scores = query @ key.mT * factor(query, scale)
    table = admitted(query, key, keep, causal=causal)
    return soften(scores.float(), table).to(query.dtype) @ value


@core(dtypes=HALVES)
def halves_throughout(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Torch's own operations in half precision, each of which adds in single precision."""
    scores = (query * factor(query, scale)) @ key.mT
    return soften(scores, admitted(query, key, keep, causal=causal)) @ value


@core(dtypes=["bfloat16"], accumulate="native")
def sums_in_bfloat16(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Exponentials and their sum rounded to bfloat16 at each step, as declared."""
    table = admitted(query, key, keep, causal=causal)
    logits = (query @ key.mT * factor(query, scale)).masked_fill(~table, -torch.inf)
    largest = logits.amax(dim=-1, keepdim=True).nan_to_num(neginf=0.0)
    weights = torch.exp(logits - largest)
    total = torch.zeros_like(largest)
    for weight in weights.unbind(dim=-1):
        total = total + weight.unsqueeze(-1)
    return (weights / torch.where(total == 0, 1.0, total)) @ value


@core(dtypes=["float32"], tf32=True)
def operands_cut_to_tensor_float_32(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Operands of products lose their last 13 bits, as on tensor cores with ``tf32`` allowed."""
    scores = _cut(query) @ _cut(key).mT * factor(query, scale)
    weights = soften(scores, admitted(query, key, keep, causal=causal))
    return _cut(weights) @ _cut(value)


def _cut(operand: Tensor) -> Tensor:
    bits = operand.float().contiguous().view(torch.int32)
    return (bits & -(2**13)).view(torch.float32)


@core(
    masks=[],
    causal=None,
    dtypes=HALVES,
    scores="fused",
    features=["scale", "softcap"],
    empty_rows="any",
    expected_failures=[MIXTURES_ROUNDED],
)
def capped_in_the_accumulator(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Four parts of the keys, capped and merged by log-sum-exps in single precision alone."""
    check(query, key, value)
    logits = query.float() @ key.float().mT * factor(query, scale)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    parts = zip(logits.chunk(4, dim=-1), value.chunk(4, dim=-2), strict=True)
    answers, sizes = [], []
    for part, values in parts:
        size = part.logsumexp(dim=-1, keepdim=True)
        weights = (part - size).exp().to(value.dtype)
        answers.append(weights.float() @ values.float())
        sizes.append(size)
    shares = torch.stack(sizes).softmax(dim=0)
    return (torch.stack(answers) * shares).sum(dim=0).to(value.dtype)


@core(
    masks=[],
    causal=None,
    dtypes=HALVES,
    scores="fused",
    empty_rows="any",
    expected_failures=[WIDER_KEYS],
)
def folded_into_a_rounded_query(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float | None = None
) -> Tensor:
    """Scale and log2(e) are multiplied into the query, which is rounded to half precision again."""
    check(query, key, value)
    folded = query * (factor(query, scale) * math.log2(math.e))
    logits = folded.float() @ key.float().mT
    weights = torch.exp2(logits - logits.amax(dim=-1, keepdim=True))
    answer = weights.to(value.dtype).float() @ value.float()
    return (answer / weights.sum(dim=-1, keepdim=True)).to(value.dtype)
