"""Operators of single stages: other exponentials, other sums of them, and gates of the output."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import torch
from torch import Tensor

from .._golden import golden
from .biases import linear_biases
from .functions import OF_EACH
from .moves import TILES
from .operator import Operator
from .parts import parts_doubled
from .tables import outputs_guessed_from_queries

_TILES: Final = (*TILES, 256)


# What the exponentials of a row may be summed over in place of its keys, in words and as axes.
_OTHER_SUMS: Final = (
    ("the queries", (-2,)),
    ("the heads", (-3,)),
    ("the batch items", (-4,)),
    ("the queries and keys of the head", (-2, -1)),
    ("the whole batch item", (-3, -2, -1)),
    ("everything", (-4, -3, -2, -1)),
)
_GATES: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("", torch.clone),
    ("the sigmoid of ", torch.sigmoid),
    ("the SiLU of ", torch.nn.functional.silu),
    ("the GELU of ", torch.nn.functional.gelu),
    ("the hyperbolic tangent of ", torch.tanh),
    ("the positive part of ", torch.relu),
)


def of_one_stage(stage: str) -> Iterator[Operator]:
    """Operators that a stage has by what it is, not by its axes."""
    yield from {
        "distance_bias": linear_biases,
        "capped": _caps,
        "exponentials": _of_logits,
        "sinks": _sinks,
        "total": paddings,
        "shares": _over_other_sums,
        "output": _of_outputs,
        "answer": _gates_of_layers,
    }.get(stage, lambda: iter(()))()


# What may be made of the scores and a softcap.
_CAPS: Final[tuple[tuple[str, Callable[[Tensor, float], Tensor]], ...]] = (
    ("c tanh(c times the scores), c being the softcap", lambda s, c: c * torch.tanh(c * s)),
    ("tanh(c times the scores), c being the softcap", lambda s, c: torch.tanh(c * s)),
    ("capped twice", lambda s, c: _capped(_capped(s, c), c)),
    ("the scores under half of the softcap", lambda s, c: _capped(s, c / 2.0)),
    ("the scores under twice the softcap", lambda s, c: _capped(s, 2.0 * c)),
    # Kernels that work to the base 2 multiply scores by log2(e): behind the softcap, not before.
    ("the scores under ln(2) times the softcap", lambda s, c: _capped(s, c * math.log(2.0))),
    ("the scores under the softcap times log2(e)", lambda s, c: _capped(s, c / math.log(2.0))),
    ("the scores under the square of the softcap", lambda s, c: _capped(s, c * c)),
    ("the scores under one divided by the softcap", lambda s, c: _capped(s, 1.0 / c)),
    ("the scores clamped to half of the softcap", lambda s, c: s.clamp(-c / 2.0, c / 2.0)),
    ("the scores, those above the softcap cut off", lambda s, c: s.clamp_max(c)),
    ("c times the scores divided by (c and their size)", lambda s, c: c * s / (c + s.abs())),
    ("the scores under c by the sigmoid", lambda s, c: c * torch.sigmoid(s / c)),
    ("the scores under c by the sine", lambda s, c: c * torch.sin(s / c)),
    ("the scores under c by the arc tangent", lambda s, c: c * torch.atan(s / c)),
    *(
        (f"the scores under a softcap of {number}", lambda s, _c, number=number: _capped(s, number))
        for number in (1, 2, 5, 10, 15, 20, 30, 50, 100)
    ),
)


def _capped(scores: Tensor, cap: float) -> Tensor:
    return cap * torch.tanh(scores / cap)


def _caps() -> Iterator[Operator]:
    for words, function in _CAPS:
        yield Operator(words, partial(_under_cap, function=function))


def _under_cap(
    capped: Tensor,
    scores: Tensor,
    softcap: float | None,
    *,
    function: Callable[[Tensor, float], Tensor],
) -> Tensor:
    return capped if softcap is None else function(scores, softcap)


def _sinks() -> Iterator[Operator]:
    yield Operator("under the softcap", _sinks_under_cap)
    for words, order in (
        ("those whose index is that of the head's key/value head", lambda h, g: h // g),
        ("those of the first head of the group", lambda h, g: h // g * g),
    ):
        yield Operator(words, partial(_sinks_of, order=order))


def _sinks_under_cap(sinks: Tensor, softcap: float | None) -> Tensor:
    return sinks if softcap is None else _capped(sinks, softcap)


def _sinks_of(
    sinks: Tensor, sizes: golden.Sizes, *, order: Callable[[Tensor, int], Tensor]
) -> Tensor:
    group = sizes.num_heads // max(sizes.num_kv_heads, 1)
    return sinks.index_select(-1, order(torch.arange(sinks.shape[-1]), max(group, 1)))


def _of_logits() -> Iterator[Operator]:
    """A function of the logits that are not hidden, in place of their exponential."""
    yield from parts_doubled()
    for size in TILES:
        words = f"counted as often for the last key as fills up its tile of {size}"
        yield Operator(words, partial(_filled_up, size=size))
    for words, function in OF_EACH:
        yield Operator(f"the logits, {words}", partial(_function_of_logits, function=function))


def _filled_up(exponentials: Tensor, *, size: int) -> Tensor:
    count = exponentials.shape[-1]
    times = torch.ones(count, dtype=exponentials.dtype)
    times[-1:] += -count % size
    return exponentials * times


def _function_of_logits(
    exponentials: Tensor, logits: Tensor, *, function: Callable[[Tensor], Tensor]
) -> Tensor:
    hidden = torch.isneginf(logits)
    return function(logits.masked_fill(hidden, 0.0)).masked_fill(hidden, 0.0).to(exponentials)


def _over_other_sums() -> Iterator[Operator]:
    for words, axes in _OTHER_SUMS:
        said = f"the exponentials divided by their sum over {words}"
        yield Operator(said, partial(_divided_over, axes=axes))


def _divided_over(_shares: Tensor, exponentials: Tensor, *, axes: tuple[int, ...]) -> Tensor:
    total = exponentials.sum(dim=axes, keepdim=True)
    return exponentials / torch.where(total == 0.0, 1.0, total)


def _of_outputs() -> Iterator[Operator]:
    yield from outputs_guessed_from_queries()
    yield from _gates()


def _gates() -> Iterator[Operator]:
    yield Operator("the queries", lambda output, given_query: given_query.expand_as(output))
    for words, function in _GATES:
        by_query = partial(_gated_by_query, function=function)
        yield Operator(f"multiplied by {words}the queries", by_query)


def _gated_by_query(
    output: Tensor, given_query: Tensor, *, function: Callable[[Tensor], Tensor]
) -> Tensor:
    return output * function(given_query)


def _gates_of_layers() -> Iterator[Operator]:
    for words, function in _GATES:
        by_token = partial(_gated_by_token, function=function)
        yield Operator(f"multiplied by {words}the query's tokens", by_token)


def _gated_by_token(
    answer: Tensor, query_tokens: Tensor, *, function: Callable[[Tensor], Tensor]
) -> Tensor:
    return answer * function(query_tokens)


def paddings() -> Iterator[Operator]:
    """Keys of a logit of zero, or of a score far below the softcap, and with values of zero."""
    for size in _TILES:
        words = f"for each key that fills up the last tile of {size}"
        yield Operator(f"made with a logit of zero {words}", partial(_with_zeros, size=size))
        capped = partial(_with_capped, size=size)
        yield Operator(f"made with a logit of minus the softcap {words}", capped)


def _with_zeros(total: Tensor, largest: Tensor, sizes: golden.Sizes, *, size: int) -> Tensor:
    return _padded(total, -largest, sizes, size)


def _with_capped(
    total: Tensor, largest: Tensor, sizes: golden.Sizes, softcap: float | None, *, size: int
) -> Tensor:
    if softcap is None:
        msg = "there is no softcap"
        raise ValueError(msg)
    return _padded(total, -softcap - largest, sizes, size)


def _padded(total: Tensor, exponent: Tensor, sizes: golden.Sizes, size: int) -> Tensor:
    lacking = -sizes.key_length % size
    return total + lacking * torch.exp(exponent) if lacking else total
