"""learned.*: norm weights, temperatures, slopes, tables, and a key and value that a call gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from torch import Tensor

from .._golden import golden
from ..declare.candidate import Candidate
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import EVERY_OPTION
from .judging import measures_golden
from .registry import Check, Finding, clause
from .subject import Subject

LEARNED: Final = EVERY_OPTION.replace(
    values=LIVELY,
    least=(("key_length", 2),),
    preferred=(("num_heads", 2), ("batch", 2)),
    share=0.5,
)
# Other values of a learned argument, for inputs of some sizes.
Change = Callable[[Tensor, Inputs], Tensor]


class Row(NamedTuple):
    """A clause on learned arguments: wrong values, one of which the seed chooses, must show."""

    slug: str
    feature: str
    sentence: str
    source: str
    counterfactual: str
    wording: str
    others: tuple[tuple[str, Change], ...]


def takes(feature: str) -> Callable[[Candidate], str]:
    """Why a candidate takes no learned arguments of a feature, or ""."""
    return lambda c: (
        ""
        if feature in c.declaration.features
        else f"its calls give no {feature.replace('_', ' ')}"
    )


def takes_learned(candidate: Candidate) -> str:
    """Why a candidate takes no learned arguments, or ""."""
    return "" if candidate.declaration.learned else "its calls give no learned arguments"


def with_other(inputs: Inputs, argument: str, change: Change) -> Inputs:
    """The inputs with other values of a learned argument."""
    if inputs.learned is None:
        return inputs
    return inputs.replace(
        learned=inputs.learned.changed(
            lambda value, name: change(value, inputs) if name == argument else value
        )
    )


def _ones(value: Tensor, _inputs: Inputs) -> Tensor:
    return torch.ones_like(value)


def _zeros(value: Tensor, _inputs: Inputs) -> Tensor:
    return torch.zeros_like(value)


def _reversed_channels(value: Tensor, _inputs: Inputs) -> Tensor:
    return value.flip(-1)


def _of_other_heads(value: Tensor, _inputs: Inputs) -> Tensor:
    return value.roll(1, dims=-1)


def _of_other_rows(value: Tensor, _inputs: Inputs) -> Tensor:
    return value.roll(1, dims=0)


def _of_the_first_item(value: Tensor, _inputs: Inputs) -> Tensor:
    return value[:1].expand_as(value) if value.dim() > 1 else value


def _of_the_formula(value: Tensor, inputs: Inputs) -> Tensor:
    return golden.alibi_slopes(inputs.geometry.num_heads).to(value.dtype).expand_as(value)


ROWS: Final = (
    Row(
        "learned.norm-weight",
        "norm_weight",
        "Normalised queries are multiplied by query_norm_weight and normalised keys by "
        "key_norm_weight, channel by channel, before positions turn them.",
        "Zhang & Sennrich 2019 (RMSNorm), equation 4; tpu-inference#3040; vllm-xpu-kernels#573",
        "weights of one, or in the opposite order of channels",
        "normalised heads are not multiplied by their weights",
        (
            ("query_norm_weight", _ones),
            ("key_norm_weight", _ones),
            ("query_norm_weight", _reversed_channels),
            ("key_norm_weight", _reversed_channels),
        ),
    ),
    Row(
        "learned.temperature",
        "temperature",
        "The scaled products of each head are multiplied by its temperature, before cap, bias and "
        "mask.",
        "El-Nouby et al. 2021 (XCiT), section 3.2; Liu et al. 2022 (Swin V2), equation 2",
        "temperatures of one, or of another head",
        "the products of a head are not multiplied by its temperature",
        (("temperature", _ones), ("temperature", _of_other_heads)),
    ),
    Row(
        "learned.slopes",
        "alibi_slopes",
        "Each position of distance takes the given slope off the logit, that of its head and, for "
        "slopes [B, H], of its item.",
        "flash-attention: alibi_slopes, (nheads,) or (batch_size, nheads); flashinfer#1606",
        "the slopes of the formula, of another head, or of the first item",
        "distances do not count by the given slopes",
        (
            ("alibi_slopes", _of_the_formula),
            ("alibi_slopes", _of_other_heads),
            ("alibi_slopes", _of_the_first_item),
        ),
    ),
    Row(
        "learned.relative-table",
        "relative_table",
        "The entry of relative_table for the bucket of the places from query to key, in the column "
        "of the head, is added to the logit, whatever the scale.",
        "Raffel et al. 2020 (T5), section 2.1, and the authors' code; Shaw et al. 2018, section 3",
        "a table of zeros, of another head, of the bucket beside, or of the other direction",
        "distances do not count by the given table",
        (
            ("relative_table", _zeros),
            ("relative_table", _of_other_heads),
            ("relative_table", _of_other_rows),
            ("relative_table", lambda value, _inputs: value.flip(0)),
        ),
    ),
    Row(
        "learned.memory",
        "bias_kv",
        "Behind the keys of each item every query attends one more, bias_k of its key/value head, "
        "whose value is bias_v, whatever masks and causality hide.",
        "torch, MultiheadAttention: add_bias_kv; Sukhbaatar et al. 2019 (persistent memory), eq. 9",
        "a value or a key of zeros, or of another head",
        "the key and value that a call gives to all items are not attended beside its own",
        (
            ("bias_v", _zeros),
            ("bias_k", _zeros),
            ("bias_v", _of_other_rows),
            ("bias_k", _of_other_rows),
        ),
    ),
)


def _check(row: Row) -> Check:
    def check(subject: Subject, problem: Problem) -> Finding:
        """With all other options, against the golden; wrong values must show."""
        inputs = subject.inputs(problem)
        argument, change = row.others[problem.seed % len(row.others)]
        other = with_other(inputs, argument, change)
        return measures_golden(subject, inputs, row.wording, counterfactual=other)

    return check


for _row in ROWS:
    clause(
        _row.slug,
        sentence=_row.sentence,
        source=_row.source,
        space=LEARNED,
        needs_golden=True,
        counterfactual=_row.counterfactual,
        applies=(takes(_row.feature),),
        subtle=True,
    )(_check(_row))
