"""The golden's answer to a vector, with the derived bound of the vector's dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from conformance._golden import golden
from conformance.declare.promises import declare
from conformance.tolerance import Contract, contract_for, core_bound
from conformance.tolerance.attention_bound import weights_bound
from conformance.tolerance.softmax_and_sum import exponent_error
from conformance.tolerance.visible_keys import live_keys

from .collected import Vector
from .items import Question, questions

SCORES, CAPPED, LOGITS, WEIGHTS = range(4)


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What an output should be, float64, and how far each element may be from it."""

    value: Tensor
    bound: Tensor


def expectations(vector: Vector, **changes: Any) -> dict[str, Expected]:
    """Every output of a vector by its name; ``changes`` are fields of the semantics."""
    items = list(questions(vector))
    expected = {"Y": _packed(vector, _joined([_output(vector, item, changes) for item in items]))}
    if "qk_matmul_output" in vector.outputs:
        mode = vector.attributes.get("qk_matmul_output_mode", SCORES)
        stages = [_stage(vector, item, mode, changes) for item in items]
        expected["qk_matmul_output"] = _joined(stages)
    for name, tokens in (("present_key", "key"), ("present_value", "value")):
        if name in vector.outputs:
            kept = torch.cat([getattr(item, tokens) for item in items]).double()
            expected[name] = Expected(value=kept, bound=torch.zeros_like(kept))
    return expected


def _output(vector: Vector, question: Question, changes: dict[str, Any]) -> Expected:
    attention = question.evaluate(**changes)
    rows = question.own_rows()
    bound = core_bound(attention, _contract(vector, attention))
    return Expected(value=attention.output[:, :, rows], bound=bound[:, :, rows])


def _stage(vector: Vector, question: Question, mode: int, changes: dict[str, Any]) -> Expected:
    """The matrix that a mode of ``qk_matmul_output`` asks for.

    Scores, capped or not, are those of all keys: the golden leaves out what nobody reads, so it is
    evaluated again without masks.
    """
    attention = question.evaluate(masked=mode in (LOGITS, WEIGHTS), **changes)
    contract = _contract(vector, attention)
    if mode == WEIGHTS:
        value, bound = attention.weights, weights_bound(attention, contract)
    else:
        value = (attention.scores, attention.capped, attention.logits)[mode]
        bound = exponent_error(attention, live_keys(attention), contract)
    rows, keys = question.own_rows(), question.own_keys()
    return Expected(value=value[:, :, rows, keys], bound=bound[:, :, rows, keys])


def _contract(vector: Vector, attention: golden.Attention) -> Contract:
    return contract_for(declare("core"), vector.dtype, attention.scale)


def _joined(items: list[Expected]) -> Expected:
    return Expected(
        value=torch.cat([item.value for item in items]),
        bound=torch.cat([item.bound for item in items]),
    )


def _packed(vector: Vector, heads: Expected) -> Expected:
    """Three axes again where the inputs had three."""
    if vector.inputs["Q"].ndim == len("BHLD"):
        return heads
    return Expected(
        value=heads.value.transpose(1, 2).flatten(2), bound=heads.bound.transpose(1, 2).flatten(2)
    )
