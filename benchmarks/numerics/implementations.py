"""Legitimate cores: which there are, what each promises, and which problems each can be given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from conformance.declare.promises import declare
from conformance.tolerance import Contract, contract_for

from . import in_dtype, in_wide
from .arithmetic import logits
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


SMALL_LOGITS: Final = 40.0


def _has_small_logits(heads: Heads) -> bool:
    scores = logits(heads.repeated())
    return bool(scores[scores > -torch.inf].abs().max() < SMALL_LOGITS)


LARGE_LOGITS: Final = 1e6


def _has_usable_sum(heads: Heads) -> bool:
    """Up to logits of 1e6 the rounding of a float32 log-sum-exp is a small error of the weights."""
    heads = heads.repeated()
    return bool(logits(heads).abs().nan_to_num(posinf=0.0).max() < LARGE_LOGITS)


SMALL_TABLE: Final = 400_000


def _is_small(heads: Heads) -> bool:
    rows = heads.query.numel() // heads.query.shape[-1]
    width = max(heads.query.shape[-1], heads.value.shape[-1])
    return rows * heads.key.shape[2] * width < SMALL_TABLE


def _is_float32(heads: Heads) -> bool:
    return heads.dtype == torch.float32


IMPLEMENTATIONS: Final[dict[str, Implementation]] = {
    "sdpa math": Implementation(
        compute=in_dtype.sdpa(SDPBackend.MATH), promise=EAGER, takes=_uncapped
    ),
    "sdpa flash": Implementation(
        compute=in_dtype.sdpa(SDPBackend.FLASH_ATTENTION), takes=_flash_takes
    ),
    "sdpa flash, is_causal": Implementation(
        compute=in_dtype.sdpa(SDPBackend.FLASH_ATTENTION, flag=True),
        takes=lambda heads: heads.causal and _flash_takes(heads),
    ),
    "flex_attention": Implementation(compute=in_dtype.flex, promise=EAGER),
    "eager": Implementation(compute=in_dtype.eager, promise=EAGER),
    "eager, product divided": Implementation(compute=in_dtype.eager_divided, promise=EAGER),
    "eager, query scaled": Implementation(compute=in_dtype.eager_query_scaled, promise=EAGER),
    "einsum": Implementation(compute=in_dtype.einsum, promise=EAGER),
    "baddbmm": Implementation(compute=in_dtype.baddbmm, promise=EAGER, takes=_uncapped),
    "upcast": Implementation(compute=in_wide.upcast),
    "upcast, weights stored": Implementation(compute=in_wide.upcast_rounded_weights),
    "query scaled": Implementation(compute=in_wide.query_scaled),
    "both scaled by the root": Implementation(compute=in_wide.both_scaled),
    "scale stored": Implementation(compute=in_wide.scale_stored),
    "divided by the root": Implementation(compute=in_wide.divided_by_root),
    "times the reciprocal": Implementation(compute=in_wide.reciprocal),
    "without the maximum": Implementation(compute=in_wide.without_maximum, takes=_has_small_logits),
    "exp of log-softmax": Implementation(compute=in_wide.from_log_softmax, takes=_has_usable_sum),
    "exp(logit - lse)": Implementation(compute=in_wide.from_log_sum_exp, takes=_has_usable_sum),
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
    "sequential": Implementation(compute=in_wide.sequential),
    "pairwise sums": Implementation(compute=in_wide.pairwise, takes=_is_small),
    "reversed keys": Implementation(compute=in_wide.reversed_keys),
    "row by row": Implementation(compute=in_wide.row_by_row),
    "head by head": Implementation(compute=in_wide.head_by_head),
    "numpy": Implementation(compute=in_wide.numpy_arrays),
    "float64, rounded once": Implementation(compute=in_wide.wide_inside),
    "all native": Implementation(compute=in_dtype.all_native, promise=NATIVE),
    "tf32 operands": Implementation(
        compute=in_wide.tensor_float_operands, promise=TF32, takes=_is_float32
    ),
}
