"""Legitimate cores: ways to compute attention that round differently, each within its contract."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

from conformance.declaration import declare
from conformance.tolerance import Contract, contract_for

from .arithmetic import finish, largest, logits, stored, transposed, wide, wide_dtype
from .inputs import Heads
from .online import Online, split_and_merged

Core = Callable[[Heads], Tensor]


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What an implementation declares about its numbers; see ``conformance.core``."""

    scores: str = "fused"
    accumulate: str | None = None
    tf32: bool = False

    def contract(self, dtype: str, scale: float) -> Contract:
        """The contract that follows from the declaration."""
        declaration = declare(
            "core", scores=self.scores, accumulate=self.accumulate, tf32=self.tf32
        )
        return contract_for(declaration, dtype, scale)


FUSED: Final = Promise()
EAGER: Final = Promise(scores="eager")
NATIVE: Final = Promise(scores="eager", accumulate="native")
TF32: Final = Promise(tf32=True)


@dataclass(frozen=True, kw_only=True)
class Implementation:
    """A core, what it promises, and which problems it can be given."""

    compute: Core
    promise: Promise = FUSED
    takes: Callable[[Heads], bool] = lambda _: True


def _uncapped(heads: Heads) -> bool:
    return heads.softcap is None


def _flash_takes(heads: Heads) -> bool:
    """The CPU's flash kernel knows one head size."""
    return _uncapped(heads) and heads.query.shape[-1] == heads.value.shape[-1]


def eager(heads: Heads) -> Tensor:
    """Line by line in the working dtype, everything stored."""
    heads = heads.repeated()
    scores = finish(heads.query @ transposed(heads.key) * heads.scale, heads)
    return torch.softmax(scores, dim=-1) @ heads.value


def eager_divided(heads: Heads) -> Tensor:
    """The product divided by sqrt(D), the softmax in float32, the weights stored (HF's Llama)."""
    heads = heads.repeated()
    scores = finish(heads.query @ transposed(heads.key) / (1.0 / heads.scale), heads)
    weights = torch.softmax(wide(scores), dim=-1).to(heads.dtype)
    return weights @ heads.value


def eager_query_scaled(heads: Heads) -> Tensor:
    """The scale goes to the query first, in the working dtype (fairseq, T5 code)."""
    heads = heads.repeated()
    scores = finish((heads.query * heads.scale) @ transposed(heads.key), heads)
    return torch.softmax(scores, dim=-1) @ heads.value


def einsum(heads: Heads) -> Tensor:
    """Two einsums with the softmax between them."""
    heads = heads.repeated()
    scores = torch.einsum("bhqd,bhkd->bhqk", heads.query, heads.key) * heads.scale
    weights = torch.softmax(finish(scores, heads), dim=-1)
    return torch.einsum("bhqk,bhkv->bhqv", weights, heads.value)


def baddbmm(heads: Heads) -> Tensor:
    """Bias, scale and product in one call of ``torch.baddbmm`` (as in Bloom)."""
    heads = heads.repeated()
    queries, keys = heads.query.flatten(0, 1), heads.key.flatten(0, 1)
    table = (*heads.query.shape[:3], heads.key.shape[2])
    added = heads.additive(heads.dtype)
    added = torch.zeros(table, dtype=heads.dtype) if added is None else added.expand(table)
    scores = torch.baddbmm(added.flatten(0, 1), queries, transposed(keys), alpha=heads.scale)
    mixed = torch.softmax(scores, dim=-1) @ heads.value.flatten(0, 1)
    return mixed.view(*table[:3], -1)


def flex(heads: Heads) -> Tensor:
    """``flex_attention`` without compilation."""
    added, softcap = heads.additive(wide_dtype(heads.dtype)), heads.softcap
    shape = (heads.query.shape[0], heads.query.shape[1], heads.query.shape[2], heads.key.shape[2])
    added = None if added is None else added.expand(shape)

    def changed(score: Tensor, *place: Tensor) -> Tensor:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        return score if added is None else score + added[place]

    answer = flex_attention(
        heads.query,
        heads.repeated().key,
        heads.repeated().value,
        score_mod=changed,
        scale=heads.scale,
    )
    if not isinstance(answer, Tensor):
        msg = "flex_attention returned more than the answer"
        raise TypeError(msg)
    return answer


def sdpa(backend: SDPBackend, *, flag: bool = False) -> Core:
    """One of torch's own kernels; ``flag`` says ``is_causal`` instead of giving the mask."""

    def core(heads: Heads) -> Tensor:
        mask: dict[str, Any] = {"is_causal": True}
        if not flag:
            keep, added = heads.keep, heads.additive(heads.dtype)
            mask = {"attn_mask": keep if heads.bias is None else added}
        grouped = backend == SDPBackend.MATH and heads.query.shape[1] != heads.key.shape[1]
        given = heads if grouped else heads.repeated()  # the CPU's flash kernel wants equal heads
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(
                given.query,
                given.key,
                given.value,
                scale=given.scale,
                enable_gqa=grouped,
                **mask,
            )

    return core


def mixed(scores: Tensor, heads: Heads, *, dtype: torch.dtype | None = None) -> Tensor:
    """Softmax and weighted sum in wide arithmetic; weights stored in ``dtype`` if one is given."""
    weights = torch.softmax(scores, dim=-1)
    weights = weights if dtype is None else stored(weights, dtype)
    return (weights @ wide(heads.value)).to(heads.dtype)


def upcast(heads: Heads) -> Tensor:
    """Everything in wide arithmetic, rounded once at the end."""
    heads = heads.repeated()
    return mixed(logits(heads), heads)


def upcast_rounded_weights(heads: Heads) -> Tensor:
    """Wide arithmetic with the weights stored in the working dtype."""
    heads = heads.repeated()
    return mixed(logits(heads), heads, dtype=heads.dtype)


def query_scaled(heads: Heads) -> Tensor:
    """The query times the scale, stored in the working dtype, then wide arithmetic."""
    heads = heads.repeated()
    query = wide(heads.query * heads.scale)
    return mixed(finish(query @ transposed(wide(heads.key)), heads), heads)


def both_scaled(heads: Heads) -> Tensor:
    """Query and key each times the root of the scale, stored in the working dtype."""
    heads = heads.repeated()
    root = math.sqrt(heads.scale)
    query, key = wide(heads.query * root), wide(heads.key * root)
    return mixed(finish(query @ transposed(key), heads), heads)


def scale_stored(heads: Heads) -> Tensor:
    """The scale itself is a number of the working dtype."""
    heads = heads.repeated()
    scale = wide(torch.tensor(heads.scale, dtype=heads.dtype))
    products = wide(heads.query) @ transposed(wide(heads.key))
    return mixed(finish(products * scale, heads), heads)


def divided_by_root(heads: Heads) -> Tensor:
    """The product divided by the rounded root of the head size."""
    heads = heads.repeated()
    products = wide(heads.query) @ transposed(wide(heads.key))
    root = torch.tensor(1.0 / heads.scale, dtype=products.dtype)
    return mixed(finish(products / root, heads), heads)


def reciprocal(heads: Heads) -> Tensor:
    """The weighted sum of bare exponentials times one over their sum."""
    heads = heads.repeated()
    scores = logits(heads)
    weights = torch.exp(scores - largest(scores))
    total = weights.sum(dim=-1, keepdim=True).reciprocal()
    sums = stored(weights, heads.dtype) @ wide(heads.value)
    return (sums * total).to(heads.dtype)


def without_maximum(heads: Heads) -> Tensor:
    """Exponentials of the bare logits: correct while these are small."""
    heads = heads.repeated()
    weights = torch.exp(logits(heads))
    return (weights @ wide(heads.value) / weights.sum(dim=-1, keepdim=True)).to(heads.dtype)


def _has_small_logits(heads: Heads) -> bool:
    scores = logits(heads.repeated())
    return bool(scores[scores > -torch.inf].abs().max() < SMALL_LOGITS)


SMALL_LOGITS: Final = 40.0


def from_log_softmax(heads: Heads) -> Tensor:
    """Weights as exp(log_softmax), never divided by their sum."""
    heads = heads.repeated()
    weights = torch.exp(torch.log_softmax(logits(heads), dim=-1))
    return (weights @ wide(heads.value)).to(heads.dtype)


def from_log_sum_exp(heads: Heads) -> Tensor:
    """Weights as exp(logit - lse) with the lse stored."""
    heads = heads.repeated()
    scores = logits(heads)
    weights = torch.exp(scores - torch.logsumexp(scores, dim=-1, keepdim=True))
    return (weights @ wide(heads.value)).to(heads.dtype)


def _has_usable_sum(heads: Heads) -> bool:
    """Up to logits of 1e6 the rounding of a float32 log-sum-exp is a small error of the weights."""
    heads = heads.repeated()
    return bool(logits(heads).abs().nan_to_num(posinf=0.0).max() < LARGE_LOGITS)


LARGE_LOGITS: Final = 1e6


def wide_inside(heads: Heads) -> Tensor:
    """Everything in float64, rounded once."""
    return heads.golden().output.to(heads.dtype)


def numpy_arrays(heads: Heads) -> Tensor:
    """The plain formula in numpy."""
    heads = heads.repeated()
    query, key, value = (wide(t).numpy() for t in (heads.query, heads.key, heads.value))
    scores = query @ key.swapaxes(-1, -2) * query.dtype.type(heads.scale)
    scores = finish(torch.from_numpy(scores), heads).numpy()
    weights = torch.exp(torch.from_numpy(scores - scores.max(axis=-1, keepdims=True))).numpy()
    answer = weights / weights.sum(axis=-1, keepdims=True) @ value
    return torch.from_numpy(answer).to(heads.dtype)


def head_by_head(heads: Heads) -> Tensor:
    """A loop over items and heads: matrix products of another shape."""
    heads = heads.repeated()
    scores = torch.stack(
        [
            wide(query) @ wide(key).T
            for query, key in zip(heads.query.flatten(0, 1), heads.key.flatten(0, 1), strict=True)
        ]
    ).view(*heads.query.shape[:3], -1)
    return mixed(finish(scores * heads.scale, heads), heads)


def row_by_row(heads: Heads) -> Tensor:
    """A loop over queries: products of a matrix and a vector."""
    heads = heads.repeated()
    scores = logits(heads)
    rows = [
        torch.softmax(scores[:, :, row : row + 1], dim=-1) @ wide(heads.value)
        for row in range(scores.shape[2])
    ]
    return torch.cat(rows, dim=2).to(heads.dtype)


def reversed_keys(heads: Heads) -> Tensor:
    """Adds up from the last key to the first."""
    heads = heads.repeated()
    weights = torch.softmax(logits(heads).flip(-1), dim=-1)
    return (weights @ wide(heads.value).flip(-2)).to(heads.dtype)


def sequential(heads: Heads) -> Tensor:
    """One channel after the other and one key after the other: the longest chain of roundings."""
    heads = heads.repeated()
    query, key, value = wide(heads.query), wide(heads.key), wide(heads.value)
    products = torch.zeros(*query.shape[:3], key.shape[2], dtype=query.dtype)
    for channel in range(query.shape[-1]):
        products += query[..., channel].unsqueeze(-1) * key[..., channel].unsqueeze(-2)
    scores = finish(products * heads.scale, heads)
    weights = torch.exp(scores - largest(scores))
    total = torch.zeros(*query.shape[:3], 1, dtype=query.dtype)
    sums = torch.zeros(*query.shape[:3], value.shape[-1], dtype=query.dtype)
    for index in range(key.shape[2]):
        weight = weights[..., index : index + 1]
        total += weight
        sums += stored(weight, heads.dtype) * value[..., index : index + 1, :]
    return (sums / total).to(heads.dtype)


def pairwise(heads: Heads) -> Tensor:
    """Sums of elementwise products, which torch adds up in pairs."""
    heads = heads.repeated()
    products = wide(heads.query).unsqueeze(-2) * wide(heads.key).unsqueeze(-3)
    weights = torch.softmax(finish(products.sum(dim=-1) * heads.scale, heads), dim=-1)
    sums = (weights.unsqueeze(-1) * wide(heads.value).unsqueeze(-3)).sum(dim=-2)
    return sums.to(heads.dtype)


def _is_small(heads: Heads) -> bool:
    rows = heads.query.numel() // heads.query.shape[-1]
    width = max(heads.query.shape[-1], heads.value.shape[-1])
    return rows * heads.key.shape[2] * width < SMALL_TABLE


SMALL_TABLE: Final = 400_000


def all_native(heads: Heads) -> Tensor:
    """Every step of the softmax stored in the working dtype, one after the other."""
    heads = heads.repeated()
    scores = finish(heads.query @ transposed(heads.key) * heads.scale, heads)
    weights = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
    return weights / weights.sum(dim=-1, keepdim=True) @ heads.value


def tensor_float(numbers: Tensor) -> Tensor:
    """Float32 rounded to the 10 bits of TensorFloat-32, to nearest, ties to even."""
    bits = numbers.contiguous().view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


def tensor_float_operands(heads: Heads) -> Tensor:
    """Both matrix products take TensorFloat-32 operands."""
    heads = heads.repeated()
    query, key, value = map(tensor_float, (heads.query, heads.key, heads.value))
    weights = torch.softmax(finish(query @ transposed(key) * heads.scale, heads), dim=-1)
    return tensor_float(weights) @ value


def _is_float32(heads: Heads) -> bool:
    return heads.dtype == torch.float32


IMPLEMENTATIONS: Final[dict[str, Implementation]] = {
    "sdpa math": Implementation(compute=sdpa(SDPBackend.MATH), promise=EAGER, takes=_uncapped),
    "sdpa flash": Implementation(compute=sdpa(SDPBackend.FLASH_ATTENTION), takes=_flash_takes),
    "sdpa flash, is_causal": Implementation(
        compute=sdpa(SDPBackend.FLASH_ATTENTION, flag=True),
        takes=lambda heads: heads.causal and _flash_takes(heads),
    ),
    "flex_attention": Implementation(compute=flex, promise=EAGER),
    "eager": Implementation(compute=eager, promise=EAGER),
    "eager, product divided": Implementation(compute=eager_divided, promise=EAGER),
    "eager, query scaled": Implementation(compute=eager_query_scaled, promise=EAGER),
    "einsum": Implementation(compute=einsum, promise=EAGER),
    "baddbmm": Implementation(compute=baddbmm, promise=EAGER, takes=_uncapped),
    "upcast": Implementation(compute=upcast),
    "upcast, weights stored": Implementation(compute=upcast_rounded_weights),
    "query scaled": Implementation(compute=query_scaled),
    "both scaled by the root": Implementation(compute=both_scaled),
    "scale stored": Implementation(compute=scale_stored),
    "divided by the root": Implementation(compute=divided_by_root),
    "times the reciprocal": Implementation(compute=reciprocal),
    "without the maximum": Implementation(compute=without_maximum, takes=_has_small_logits),
    "exp of log-softmax": Implementation(compute=from_log_softmax, takes=_has_usable_sum),
    "exp(logit - lse)": Implementation(compute=from_log_sum_exp, takes=_has_usable_sum),
    "online, blocks of 16": Implementation(compute=Online(block=16)),
    "online, blocks of 64": Implementation(compute=Online(block=64)),
    "online, 64 backward, exp": Implementation(
        compute=Online(block=64, backward=True, base_two=False)
    ),
    "online, 128, query scaled": Implementation(compute=Online(block=128, query_scaled=True)),
    "online, 128, weights wide": Implementation(compute=Online(block=128, stored_weights=False)),
    "online, lazy rescaling": Implementation(compute=Online(block=32, lazy=8.0)),
    "split in 4": Implementation(compute=split_and_merged(4)),
    "split in 7, undivided": Implementation(
        compute=split_and_merged(7, divide=False), takes=_has_usable_sum
    ),
    "sequential": Implementation(compute=sequential),
    "pairwise sums": Implementation(compute=pairwise, takes=_is_small),
    "reversed keys": Implementation(compute=reversed_keys),
    "row by row": Implementation(compute=row_by_row),
    "head by head": Implementation(compute=head_by_head),
    "numpy": Implementation(compute=numpy_arrays),
    "float64, rounded once": Implementation(compute=wide_inside),
    "all native": Implementation(compute=all_native, promise=NATIVE),
    "tf32 operands": Implementation(compute=tensor_float_operands, promise=TF32, takes=_is_float32),
}
