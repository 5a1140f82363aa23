"""Cores that are hard on double-double arithmetic, and how far it may be from the exact answer.

The second formulation computes with 80 digits here and bounds the error of the same operations in
float64. Double-double makes the same operations with a smaller error each: none is off by
more than ``OPERATION`` squared unit roundoffs where the second formulation counts one unit roundoff
(tanh, with 80, where it counts two). Its error bounds are linear in the unit roundoff as long as
the logits are exact to far less than one, so they shrink by the ratio of the two.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, Final

import second_formulation as second
import torch
from golden_problems import Case, Shape, core_case
from torch import Tensor

from reference import Semantics

DIGITS: Final = 80
OPERATION: Final = 40
UNIT: Final = second.UNIT_ROUNDOFF
UNDERFLOW: Final = 2.0**-1022

Heads = tuple[Tensor, Tensor, Tensor]


def _nearly_tied(query: Tensor, key: Tensor, value: Tensor) -> Heads:
    """Logits near 5e5 that differ by little: what remains of them after the maximum is taken."""
    query = 700.0 + query / 700.0
    return query, 0.0 * key + 700.0 + key.sign() / 1024.0, value


def _cancelling(query: Tensor, key: Tensor, value: Tensor) -> Heads:
    """Pairs of equal keys with opposite values of 1e8, and a little that remains."""
    key = key[..., : key.shape[-2] // 2, :].repeat(1, 1, 2, 1)
    large = 1e8 * value[..., : value.shape[-2] // 2, :]
    return query, key, torch.cat([large, -large], dim=-2) + value


def _wide(tokens: Tensor) -> Tensor:
    return tokens * torch.exp2(25.0 * tokens)


def _one_hot(query: Tensor, key: Tensor, value: Tensor) -> Heads:
    """Values that show single weights, the smallest of them near exp(-300)."""
    return 12.0 * query, 12.0 * key, torch.eye(*value.shape[-2:]).double().expand_as(value)


FAMILIES: dict[str, Callable[[Tensor, Tensor, Tensor], Heads]] = {
    "normal": lambda q, k, v: (q, k, v),
    "ties": lambda q, k, v: (q, k[..., :1, :].expand_as(k).clone(), v),
    "constant": lambda q, k, v: (0 * q + 0.7, 0 * k + 0.3, 0 * v + 0.41),
    "nearly tied logits of 5e5": _nearly_tied,
    "logits to 1e4": lambda q, k, v: (100.0 * q, 100.0 * k, v),
    "cancelling values": _cancelling,
    "offset values": lambda q, k, v: (q, k, v + 1e8),
    "wide scales": lambda q, k, v: (q, k, _wide(v)),
    "one-hot values": _one_hot,
    "huge queries, tiny keys": lambda q, k, v: (2.0**990 * q, 2.0**-990 * k, v),
}
MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"causal": True},
    "mask and bias": {"keep_axes": (True,) * 4, "bias_axes": (False, True, True, True)},
    "softcap": {"softcap": 5.0},
    "softcap and bias": {"softcap": 0.5, "bias_axes": (True,) * 4},
    "lengths": {"length_form": "BQ"},
}
SHAPE: Final = Shape(
    batch=1, kv_heads=2, group=2, query_length=3, key_length=6, head_size=5, value_head_size=6
)


def family_case(family: str, **changes: Any) -> Case:
    """A core of a family."""
    case = core_case(SHAPE.changed(**changes))
    return dataclasses.replace(case, inputs=FAMILIES[family](*case.inputs))


def with_exact_scale(case: Case, point: Semantics) -> tuple[Case, Any]:
    """The case with the scale that the golden's rule gives as a number, and the golden's answer."""
    answer = case.golden(point)
    core = answer if case.weights is None else answer.core
    return dataclasses.replace(case, shape=case.shape.changed(scale=core.scale)), answer


def flat(nested: Any) -> Iterator[Any]:
    """The numbers of nested lists in order."""
    if isinstance(nested, list):
        for entry in nested:
            yield from flat(entry)
    else:
        yield nested


@dataclasses.dataclass(frozen=True, kw_only=True)
class Truth:
    """The exact value of an element, NaN for one, and how far double-double may be from it."""

    value: Any
    allowed: Any


def truths(case: Case, point: Semantics) -> list[Truth]:
    """What each element of the output must be."""
    with second.digits(DIGITS):
        return [
            Truth(value=number.value, allowed=OPERATION * UNIT * number.error + UNDERFLOW)
            for number in flat(case.second(point).output)
        ]


def excesses(case: Case, point: Semantics, output: tuple[Tensor, Tensor]) -> Iterator[float]:
    """Each element's error over what it may be; infinite where one is NaN and the other is not."""
    pairs = zip(output[0].flatten().tolist(), output[1].flatten().tolist(), strict=True)
    with second.digits(DIGITS):
        for (high, low), truth in zip(pairs, truths(case, point), strict=True):
            if math.isnan(high) or math.isnan(float(truth.value)):
                both = math.isnan(high) and math.isnan(float(truth.value))
                yield 0.0 if both else math.inf
            else:
                distance = second.number(high).value - truth.value + second.number(low).value
                yield float(abs(distance) / truth.allowed)
