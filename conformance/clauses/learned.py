"""learned.*: norm weights, temperatures and slopes that a call gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import torch
from torch import Tensor

from .._golden import golden
from ..declare.candidate import Candidate
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import EVERY_OPTION
from .judging import measures_golden
from .registry import Finding, clause
from .subject import Subject

LEARNED: Final = EVERY_OPTION.replace(
    values=LIVELY,
    least=(("key_length", 2),),
    preferred=(("num_heads", 2), ("batch", 2)),
    share=0.5,
)
Change = Callable[[Tensor, str], Tensor]


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


def with_others(inputs: Inputs, names: Iterable[str], change: Change) -> Inputs:
    """The inputs with other values of some learned arguments."""
    if inputs.learned is None:
        return inputs
    chosen = set(names)
    return inputs.replace(
        learned=inputs.learned.changed(
            lambda value, name: change(value, name) if name in chosen else value
        )
    )


def _of_other_heads(value: Tensor, _name: str) -> Tensor:
    return value.roll(1, dims=-1)


def _of_the_first_item(value: Tensor, _name: str) -> Tensor:
    return value[:1].expand_as(value)


@clause(
    "learned.norm-weight",
    sentence=(
        "Normalised queries are multiplied by query_norm_weight and normalised keys by "
        "key_norm_weight, channel by channel, before positions turn them."
    ),
    source="Zhang & Sennrich 2019 (RMSNorm), equation 4; tpu-inference#3040; vllm-xpu-kernels#573",
    space=LEARNED.replace(preferred=(("head_size", 3),)),
    needs_golden=True,
    counterfactual="weights of one, or in the opposite order of channels",
    applies=(takes("norm_weight"),),
    subtle=True,
)
def norm_weight(subject: Subject, problem: Problem) -> Finding:
    """Different weights of query and key, with all other options."""
    inputs = subject.inputs(problem)
    names = (("query_norm_weight",), ("key_norm_weight",))[problem.seed % 2]
    reversed_ = problem.seed % 3 == 0 and inputs.geometry.head_size > 1

    def other(value: Tensor, _name: str) -> Tensor:
        return value.flip(-1) if reversed_ else torch.ones_like(value)

    wording = "normalised heads are not multiplied by their weights"
    counterfactual = with_others(inputs, names, other)
    return measures_golden(subject, inputs, wording, counterfactual=counterfactual)


@clause(
    "learned.temperature",
    sentence=(
        "The scaled products of each head are multiplied by its temperature, before cap, bias and "
        "mask."
    ),
    source="El-Nouby et al. 2021 (XCiT), section 3.2; Liu et al. 2022 (Swin V2), equation 2",
    space=LEARNED,
    needs_golden=True,
    counterfactual="temperatures of one, or of another head",
    applies=(takes("temperature"),),
    subtle=True,
)
def temperature(subject: Subject, problem: Problem) -> Finding:
    """A temperature for each head, with all other options."""
    inputs = subject.inputs(problem)
    other: Change = _of_other_heads
    if problem.seed % 2 == 0 or inputs.geometry.num_heads == 1:
        other = lambda value, _name: torch.ones_like(value)  # noqa: E731 (one of two)
    wording = "the products of a head are not multiplied by its temperature"
    counterfactual = with_others(inputs, ("temperature",), other)
    return measures_golden(subject, inputs, wording, counterfactual=counterfactual)


@clause(
    "learned.slopes",
    sentence=(
        "Each position of distance takes the given slope off the logit, that of its head and, for "
        "slopes [B, H], of its item."
    ),
    source="flash-attention: alibi_slopes, (nheads,) or (batch_size, nheads); flashinfer#1606",
    space=LEARNED,
    needs_golden=True,
    counterfactual="the slopes of the formula, of another head, or of the first item",
    applies=(takes("alibi_slopes"),),
    subtle=True,
)
def slopes(subject: Subject, problem: Problem) -> Finding:
    """Slopes of heads, or of items and heads, with all other options."""
    inputs = subject.inputs(problem)
    sizes, by_item = inputs.geometry, inputs.learned_arguments["alibi_slopes"].dim() > 1

    def of_the_formula(value: Tensor, _name: str) -> Tensor:
        return golden.alibi_slopes(sizes.num_heads).to(value.dtype).expand_as(value)

    other: Change = of_the_formula
    if problem.seed % 3 == 0 and by_item:
        other = _of_the_first_item
    elif problem.seed % 3 == 1 and sizes.num_heads > 1:
        other = _of_other_heads
    wording = "distances do not count by the given slopes"
    counterfactual = with_others(inputs, ("alibi_slopes",), other)
    return measures_golden(subject, inputs, wording, counterfactual=counterfactual)
