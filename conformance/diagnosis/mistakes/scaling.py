"""Mistakes in what the dot products are multiplied by."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch

from ...problems.inputs import Inputs
from ._steps import reweighed
from .named import Asked, Heads, NamedMistake, Question, mistakes

ScaleOf = Callable[[Asked], float]
_USE_HEAD_SIZE: Final = "divide by the square root of the head size"
_CLAUSE: Final = "numerics.scale"


def _default(scale: ScaleOf) -> Question:
    """Another scale where the call gives none."""

    def question(asked: Asked) -> Inputs | None:
        inputs = asked.inputs
        return None if inputs.scale is not None else inputs.replace(scale=scale(asked))

    return question


def _always(scale: ScaleOf) -> Question:
    return lambda asked: asked.inputs.replace(scale=scale(asked))


def _given(scale: Callable[[Asked], float | None]) -> Question:
    """Another scale where the call gives one."""

    def question(asked: Asked) -> Inputs | None:
        inputs = asked.inputs
        return None if inputs.scale is None else inputs.replace(scale=scale(asked))

    return question


def _head_size(asked: Asked) -> int:
    return asked.inputs.geometry.head_size


def _padded(multiple: int, least: int = 1) -> Question:
    def scale(asked: Asked) -> float:
        size = _head_size(asked)
        return math.pow(size if size < least else size + -size % multiple, -0.5)

    return _default(scale)


def _power_of_two(asked: Asked) -> float:
    return math.pow(2.0 ** math.ceil(math.log2(max(_head_size(asked), 1))), -0.5)


def _root(size: Callable[[Inputs], int]) -> Question:
    return _default(lambda asked: max(size(asked.inputs), 1) ** -0.5)


def _compounding(asked: Asked, heads: Heads) -> Heads:
    """Each head is scaled once more than the one before."""
    query, key, value = heads
    times = torch.arange(query.shape[1]).reshape(-1, 1, 1).double()
    return query * asked.scale**times, key, value


def _lost(where: Callable[[Inputs], bool]) -> Question:
    def question(asked: Asked) -> Inputs | None:
        return asked.inputs.replace(scale=1.0) if where(asked.inputs) else None

    return question


SCALING: Final[tuple[NamedMistake, ...]] = (
    *mistakes(
        "scale-applied-twice",
        _CLAUSE,
        "the scale is applied twice",
        "apply it once, to the queries or to the scores",
        {"question": _always(lambda asked: asked.scale**2)},
    ),
    *mistakes(
        "scale-of-key-length",
        _CLAUSE,
        "the scale uses the number of keys",
        _USE_HEAD_SIZE,
        {"question": _root(lambda inputs: inputs.geometry.key_length)},
    ),
    *mistakes(
        "scale-of-query-length",
        _CLAUSE,
        "the scale uses the number of queries",
        _USE_HEAD_SIZE,
        {"question": _root(lambda inputs: inputs.geometry.query_length)},
    ),
    *mistakes(
        "scale-of-input-width",
        _CLAUSE,
        "the scale uses the width of the layer's input",
        _USE_HEAD_SIZE,
        {"question": _root(lambda inputs: inputs.geometry.query_size)},
        {"question": _root(lambda inputs: inputs.geometry.key_size)},
        where=lambda inputs: inputs.is_layer,
    ),
    *mistakes(
        "scale-of-key-head-count",
        _CLAUSE,
        "the scale uses the number of key/value heads",
        _USE_HEAD_SIZE,
        {"question": _root(lambda inputs: inputs.geometry.num_kv_heads)},
        special_of="scale-of-head-count",
    ),
    *mistakes(
        "scale-of-padded-head-size",
        _CLAUSE,
        "the scale uses the head size after padding it",
        "take the root of the head size before padding",
        *({"question": _padded(multiple)} for multiple in (8, 16, 32, 64, 128)),
        {"question": _padded(8, least=16)},
        {"question": _default(_power_of_two)},
    ),
    *mistakes(
        "scale-hard-coded-eighth",
        _CLAUSE,
        "the scale is 1/8 whatever the head size, which is right for heads of 64 only",
        _USE_HEAD_SIZE,
        {"question": _default(lambda _asked: 0.125)},
        {"question": _always(lambda _asked: 0.125)},
    ),
    *mistakes(
        "scale-of-half-head-size",
        _CLAUSE,
        "the scale uses half of the head size",
        _USE_HEAD_SIZE,
        {"question": _default(lambda asked: max(_head_size(asked) / 2, 0.5) ** -0.5)},
    ),
    *mistakes(
        "scale-fourth-root",
        _CLAUSE,
        "the scores are divided by the fourth root of the head size: one operand alone is scaled",
        "scale both operands by the fourth root, or one by the square root",
        {"question": _default(lambda asked: max(_head_size(asked), 1) ** -0.25)},
    ),
    *mistakes(
        "scale-negated",
        _CLAUSE,
        "the sign of the scores is wrong: similar keys weigh the least",
        "drop the minus sign",
        {"question": _always(lambda asked: -asked.scale)},
        {"question": _default(lambda asked: -asked.scale)},
    ),
    *mistakes(
        "scale-argument-ignored",
        _CLAUSE,
        "the scale that the call gives is ignored",
        "use it instead of the default",
        {"question": _given(lambda _asked: None)},
    ),
    *mistakes(
        "scale-argument-on-top",
        _CLAUSE,
        "the scale that the call gives is applied on top of the default",
        "use it instead of the default",
        {"question": _given(lambda asked: asked.scale * asked.default_scale)},
    ),
    *mistakes(
        "scale-argument-inverted",
        _CLAUSE,
        "the scores are divided by the scale that the call gives",
        "multiply by it",
        {"question": _given(lambda asked: 1.0 / asked.scale if asked.scale else math.inf)},
    ),
    *mistakes(
        "scale-argument-zero-taken-for-unset",
        "numerics.odd-scale",
        "a scale of zero is taken for a scale that is not given",
        "test for None, not for truth",
        {
            "question": lambda asked: (
                asked.inputs.replace(scale=None) if asked.inputs.scale == 0.0 else None
            )
        },
    ),
    *mistakes(
        "scale-argument-sign-lost",
        "numerics.odd-scale",
        "the sign of a negative scale is lost",
        "use the scale as it is given",
        {"question": _given(lambda asked: abs(asked.scale))},
    ),
    *mistakes(
        "scale-compounds-over-heads",
        "equivariance.heads",
        "the queries are scaled once more for each head: the loop overwrites them",
        "scale once, before the loop over heads",
        {"heads": _compounding},
    ),
    *mistakes(
        "scale-lost-under-mask",
        "mask.all-keep",
        "the scores are not scaled where a mask is given",
        "scale on every path",
        {"question": _lost(lambda inputs: inputs.masked)},
    ),
    *mistakes(
        "scale-lost-under-causal",
        "mask.causal-combined",
        "the scores are not scaled where the causal flag is set",
        "scale on every path",
        {"question": _lost(lambda inputs: inputs.causal)},
    ),
    *mistakes(
        "exponentials-of-base-two",
        _CLAUSE,
        "powers of two are taken where exponentials are meant",
        "multiply the logits by log2(e), or use exp",
        {"core": reweighed(lambda logits: torch.softmax(logits * math.log(2.0), -1))},
    ),
    *mistakes(
        "scale-times-log2e",
        _CLAUSE,
        "the logits are multiplied by log2(e), as for powers of two, and then meet exp",
        "use exp2, or leave the factor out",
        {"core": reweighed(lambda logits: torch.softmax(logits / math.log(2.0), -1))},
        {"question": _always(lambda asked: asked.scale / math.log(2.0))},
    ),
)
