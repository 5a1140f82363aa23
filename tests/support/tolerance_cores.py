"""Legitimate ways to compute attention in float32, each with a rounding pattern of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from tolerance_inputs import CoreInputs
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

Core = Callable[[CoreInputs], Tensor]


def logits_of(inputs: CoreInputs, keys: slice = slice(None)) -> Tensor:
    """Scaled, capped and biased logits for some of the keys."""
    logits = (inputs.query @ inputs.key[:, :, keys].transpose(-1, -2)) * inputs.scale
    if inputs.softcap is not None:
        logits = inputs.softcap * torch.tanh(logits / inputs.softcap)
    return logits if inputs.bias is None else logits + inputs.bias[..., keys]


def naive(inputs: CoreInputs) -> Tensor:
    """Line by line as in the paper."""
    return torch.softmax(logits_of(inputs), dim=-1) @ inputs.value


def scaled_first(inputs: CoreInputs) -> Tensor:
    """Query and key each take the root of the scale before they meet."""
    root = math.sqrt(inputs.scale)
    logits = (inputs.query * root) @ (inputs.key * root).transpose(-1, -2)
    if inputs.softcap is not None:
        logits = inputs.softcap * torch.tanh(logits / inputs.softcap)
    if inputs.bias is not None:
        logits = logits + inputs.bias
    return torch.softmax(logits, dim=-1) @ inputs.value


def row_by_row(inputs: CoreInputs) -> Tensor:
    """Loops over items, heads and queries."""
    logits = logits_of(inputs)
    output = torch.zeros(*inputs.query.shape[:-1], inputs.value.shape[-1])
    for item, head, row in torch.cartesian_prod(*map(torch.arange, logits.shape[:3])).reshape(
        -1, 3
    ):
        weights = torch.softmax(logits[item, head, row], dim=-1)
        output[item, head, row] = weights @ inputs.value[item, head]
    return output


def reversed_keys(inputs: CoreInputs) -> Tensor:
    """Adds up from the last key to the first."""
    logits = logits_of(inputs).flip(-1)
    return torch.softmax(logits, dim=-1) @ inputs.value.flip(-2)


def sequential(inputs: CoreInputs) -> Tensor:
    """One key after the other, one channel after the other: the longest chain of roundings."""
    scores = torch.zeros(*inputs.query.shape[:-1], inputs.key.shape[-2])
    for channel in range(inputs.query.shape[-1]):
        scores += inputs.query[..., channel].unsqueeze(-1) * inputs.key[..., channel].unsqueeze(-2)
    logits = scores * inputs.scale
    if inputs.softcap is not None:
        logits = inputs.softcap * torch.tanh(logits / inputs.softcap)
    if inputs.bias is not None:
        logits = logits + inputs.bias
    exponentials = torch.exp(logits - logits.amax(dim=-1, keepdim=True))
    total, output = torch.zeros(*scores.shape[:3], 1), torch.zeros(1)
    for index in range(scores.shape[-1]):
        weight = exponentials[..., index : index + 1]
        total = total + weight
        output = output + weight * inputs.value[..., index : index + 1, :]
    return output / total


def wide_inside(inputs: CoreInputs) -> Tensor:
    """Everything in float64, rounded once."""
    return inputs.golden().output.float()


def _blocks(inputs: CoreInputs, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, inputs.key.shape[-2], size))


def online(size: int, *, base_two: bool) -> Core:
    """The online softmax of FlashAttention over blocks of keys."""

    def core(inputs: CoreInputs) -> Tensor:
        rows = (*inputs.query.shape[:-1], 1)
        largest, total, output = torch.full(rows, -torch.inf), torch.zeros(rows), torch.zeros(1)
        factor = float(torch.tensor(math.log2(math.e))) if base_two else 1.0
        power = torch.exp2 if base_two else torch.exp
        for keys in _blocks(inputs, size):
            logits = logits_of(inputs, keys)
            new = torch.maximum(largest, logits.amax(dim=-1, keepdim=True))
            safe = torch.where(torch.isneginf(new), 0.0, new)
            weights = power(logits * factor - safe * factor)
            kept = power((largest - safe) * factor)
            total = total * kept + weights.sum(dim=-1, keepdim=True)
            output = output * kept + weights @ inputs.value[:, :, keys]
            largest = new
        return output / total

    return core


def split_and_merged(parts: int, *, renormalised: bool) -> Core:
    """Split-K: parts of the keys on their own, merged by their log-sum-exp."""

    def core(inputs: CoreInputs) -> Tensor:
        outputs, sums = [], []
        for keys in _blocks(inputs, math.ceil(inputs.key.shape[-2] / parts)):
            logits = logits_of(inputs, keys)
            outputs.append(torch.nan_to_num(torch.softmax(logits, -1)) @ inputs.value[:, :, keys])
            sums.append(torch.logsumexp(logits, dim=-1, keepdim=True))
        logs = torch.stack(sums)
        if renormalised:
            weights = torch.softmax(logs, dim=0)
        else:
            weights = torch.exp(logs - torch.logsumexp(logs, dim=0))
        return (torch.stack(outputs) * weights).sum(dim=0)

    return core


def merged_by_share(parts: int) -> Core:
    """Ring attention: each part joins by its share of the sum so far, a sigmoid."""

    def core(inputs: CoreInputs) -> Tensor:
        output, size = torch.zeros(()), torch.full((), -math.inf)
        for keys in _blocks(inputs, math.ceil(inputs.key.shape[-2] / parts)):
            logits = logits_of(inputs, keys)
            part = torch.nan_to_num(torch.softmax(logits, -1)) @ inputs.value[:, :, keys]
            other = torch.logsumexp(logits, dim=-1, keepdim=True)
            share = torch.nan_to_num(torch.sigmoid(other - size), nan=0.0)
            output, size = output - share * (output - part), torch.logaddexp(size, other)
        return output

    return core


def from_log_sum_exp(inputs: CoreInputs) -> Tensor:
    """Weights as exp(logit - lse), never divided by their sum."""
    logits = logits_of(inputs)
    return torch.exp(logits - torch.logsumexp(logits, dim=-1, keepdim=True)) @ inputs.value


def torch_kernel(backend: SDPBackend) -> Core:
    """One of torch's own kernels."""

    def core(inputs: CoreInputs) -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(
                inputs.query,
                inputs.key,
                inputs.value,
                attn_mask=inputs.bias,
                scale=inputs.scale,
            )

    return core


CORES: dict[str, Core] = {
    "naive": naive,
    "scaled first": scaled_first,
    "row by row": row_by_row,
    "reversed keys": reversed_keys,
    "sequential": sequential,
    "float64 inside": wide_inside,
    "online, blocks of 16": online(16, base_two=True),
    "online, blocks of 64": online(64, base_two=False),
    "split in 4": split_and_merged(4, renormalised=True),
    "merged in 2 by shares": merged_by_share(2),
    "sdpa math": torch_kernel(SDPBackend.MATH),
    "sdpa flash": torch_kernel(SDPBackend.FLASH_ATTENTION),
}
# Weights that are not divided by their own sum: legitimate while rounding the lse is a small error.
UNDIVIDED: dict[str, Core] = {
    "split in 7, undivided": split_and_merged(7, renormalised=False),
    "from log-sum-exp": from_log_sum_exp,
}
NO_SOFTCAP = ("sdpa math", "sdpa flash")
