"""Scaled dot-product attention, one logit and one weight at a time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .heads import distance_bias, position, position_of_key, prepared, relative_entry
from .masks import admits, broadcast_entry, masks_lost, structure_admits
from .numbers import (
    MINUS_INFINITY,
    NAN,
    ZERO,
    Number,
    dot,
    exp,
    largest,
    number,
    power,
    tanh,
    total,
)

Place = tuple[int, int, int, int]
Table = dict[Place, Number]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of one problem: nested lists cannot say them where a length is zero."""

    batch: int
    num_heads: int
    num_kv_heads: int
    query_length: int
    key_length: int
    head_size: int
    value_head_size: int


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Query ``[B][H][Lq][D]``, key ``[B][Hkv][Lk][D]`` and value ``[B][Hkv][Lk][Dv]`` as lists.

    ``keep`` and ``bias`` have four levels, each of length one or of the score's length;
    ``rotary_tables`` are ``[B][Lk][R/2]``, a cosine and a sine in each complex number; positions
    are ``[B][Lq]`` and ``[B][Lk]``, ``learned`` the learned arguments by name.
    """

    sizes: Sizes
    query: list[Any]
    key: list[Any]
    value: list[Any]
    keep: list[Any] | None = None
    bias: list[Any] | None = None
    lengths: list[Any] | None = None
    causal: bool = False
    window: tuple[int, int] | None = None
    scale: float | None = None
    softcap: float | None = None
    sinks: list[Any] | None = None
    rotary_tables: list[Any] | None = None
    learned: dict[str, list[Any]] | None = None
    query_positions: list[Any] | None = None
    key_positions: list[Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Nested lists: ``scores``, ``logits``, ``weights`` and ``attended`` ``[B][H][Lq][Lk]``."""

    attended: list[Any]
    scores: list[Any]
    logits: list[Any]
    weights: list[Any]
    output: list[Any]


def attention(problem: Problem, point: Any) -> Answer:
    """Evaluate a problem at a point of ``Semantics``."""
    sizes = problem.sizes
    axes = (sizes.batch, sizes.num_heads, sizes.query_length, sizes.key_length)
    places = _places(*axes)
    scale = scale_of(problem, point)
    scores = {place: _score(problem, point, scale, place) for place in places}
    logits = {place: _logit(problem, point, scores[place], place) for place in places}
    attended = {place: _attends(problem, point, place) for place in places}
    if _ignored_keys_are_absent(problem, point):
        weights = _weights_over_attended_keys(problem, point, logits, attended)
    else:
        weights = _weights_by_arithmetic(problem, point, logits)
    output = nested(
        (*axes[:3], sizes.value_head_size),
        lambda b, h, i, c: _output(problem, point, weights, b, h, i, c),
    )
    return Answer(
        attended=nested(axes, lambda *place: attended[place]),
        scores=nested(axes, lambda *place: scores[place]),
        logits=nested(axes, lambda *place: logits[place]),
        weights=nested(axes, lambda *place: weights[place]),
        output=output,
    )


def _places(batch: int, num_heads: int, query_length: int, key_length: int) -> list[Place]:
    return list(
        itertools.product(range(batch), range(num_heads), range(query_length), range(key_length))
    )


def nested(axes: tuple[int, ...], entry: Callable[..., Any], *place: int) -> Any:
    """Nested lists of the given lengths from a function of the indices."""
    if not axes:
        return entry(*place)
    return [nested(axes[1:], entry, *place, index) for index in range(axes[0])]


def scale_of(problem: Problem, point: Any) -> Number:
    """What the dot products are multiplied by."""
    if problem.scale is not None:
        return number(problem.scale)
    if not isinstance(point.scale, str):
        return number(point.scale) * number(point.scale_factor)
    sizes = problem.sizes
    base, exponent = {
        "none": (1, 0.0),
        "inverse-sqrt-head-size": (sizes.head_size, -0.5),
        "inverse-head-size": (sizes.head_size, -1.0),
        "sqrt-head-size": (sizes.head_size, 0.5),
        "inverse-sqrt-model-width": (sizes.head_size * sizes.num_heads, -0.5),
        "inverse-sqrt-num-heads": (sizes.num_heads, -0.5),
        "inverse-sqrt-value-head-size": (sizes.value_head_size, -0.5),
    }[point.scale]
    return power(max(base, 1), number(exponent)) * number(point.scale_factor)


def kv_head(problem: Problem, point: Any, h: int) -> int:
    """The key/value head that query head h reads."""
    num_kv_heads = problem.sizes.num_kv_heads
    if point.group_order == "tile":
        return h % num_kv_heads
    return h // (problem.sizes.num_heads // num_kv_heads)


def _score(problem: Problem, point: Any, scale: Number, place: Place) -> Number:
    b, h, i, j = place
    of_item = None if problem.rotary_tables is None else problem.rotary_tables[b]
    learned = problem.learned or {}
    queries, keys = [head[i] for head in problem.query[b]], [head[j] for head in problem.key[b]]
    weights = [learned.get(name) for name in ("query_norm_weight", "key_norm_weight")]
    query = prepared(queries, h, position(problem, point, b, i), point, of_item, weights[0])
    of_key = (kv_head(problem, point, h), position_of_key(problem, b, j))
    key = prepared(keys, *of_key, point, of_item, weights[1])
    product = dot(query, key)
    if "temperature" in learned:
        product = product * number(learned["temperature"][h])
    bias = _bias(problem, point, place)
    if point.bias_order == "before-scale" and not bias.is_minus_infinity:
        product = product + bias
    return scale * product


def _bias(problem: Problem, point: Any, place: Place) -> Number:
    if problem.bias is None or masks_lost(problem, point):
        return ZERO
    return number(broadcast_entry(problem.bias, *place))


def _attends(problem: Problem, point: Any, place: Place) -> bool:
    return admits(problem, point, *place) and not _bias(problem, point, place).is_minus_infinity


def _logit(problem: Problem, point: Any, score: Number, place: Place) -> Number:
    capped_late = point.softcap_order == "after-mask"
    logit = score if capped_late else _cap(problem, score)
    if point.score_mod is not None:
        logit = point.score_mod(logit, *place)
    if point.alibi:
        logit = logit + distance_bias(problem, point, *place)
    if point.relative != "none" and "relative_table" in (problem.learned or {}):
        logit = logit + relative_entry(problem, point, *place)
    bias = _bias(problem, point, place)
    if bias.is_minus_infinity:
        logit = MINUS_INFINITY
    elif point.bias_order == "after-scale":
        logit = logit + bias
    logit = _mask(point, logit, admitted=admits(problem, point, *place))
    return _cap(problem, logit) if capped_late else logit


def _cap(problem: Problem, logit: Number) -> Number:
    if problem.softcap is None:
        return logit
    limit = number(problem.softcap)
    return limit * tanh(logit / limit)


def _mask(point: Any, logit: Number, *, admitted: bool) -> Number:
    operation = point.mask_operation
    if admitted:
        return logit + number(1.0) if operation == "add-to-kept" else logit
    if operation == "replace":
        return number(point.mask_fill)
    if operation == "add":
        return logit + number(point.mask_fill)
    if operation == "multiply-logits":
        return logit if logit.is_minus_infinity else ZERO
    return logit


def _ignored_keys_are_absent(problem: Problem, point: Any) -> bool:
    excluded = point.mask_operation in {"replace", "add"} and point.mask_fill == -math.inf
    capped_late = problem.softcap is not None and point.softcap_order == "after-mask"
    return excluded and point.softmax_axis == "key" and not capped_late


def _weights_over_attended_keys(
    problem: Problem, point: Any, logits: Table, attended: dict[Place, bool]
) -> Table:
    """Leave the ignored keys out of each row altogether; rows without keys follow their rule."""
    sizes = problem.sizes
    weights = dict.fromkeys(logits, ZERO)
    rows = itertools.product(range(sizes.batch), range(sizes.num_heads), range(sizes.query_length))
    for b, h, i in rows:
        row = [(b, h, i, j) for j in range(sizes.key_length)]
        live = [place for place in row if attended[place]]
        sinks = _sinks(problem, point, h)
        memory = _memory_logit(problem, point, b, h, i)
        if memory is not None:  # a last key of its own
            live, logits = [*live, (b, h, i, sizes.key_length)], {**logits}
            logits[live[-1]] = memory
        if live or sinks:
            softmax = _softmax([logits[place] for place in live], sinks)
            weights.update(zip(live, softmax, strict=True))
        else:
            weights.update({place: _empty_weight(problem, point, place) for place in row})
    return weights


def _empty_weight(problem: Problem, point: Any, place: Place) -> Number:
    """The weight of a key in a row that attends none."""
    b, _, i, j = place
    keys = range(problem.sizes.key_length)
    if point.empty_rows == "nan":
        return NAN
    if point.empty_rows == "mean-of-all":
        chosen = list(keys)
    elif point.empty_rows == "mean-of-valid":
        chosen = [k for k in keys if structure_admits(problem, point, b, i, k)]
    else:
        chosen = []
    return number(1.0) / number(len(chosen)) if j in chosen else ZERO


def _weights_by_arithmetic(problem: Problem, point: Any, logits: Table) -> Table:
    """Normalise the logits along the point's axis, whatever they hold."""
    weights: Table = {}
    if point.softmax_axis == "none":
        weights = {p: ZERO if x.is_minus_infinity else x for p, x in logits.items()}
    else:
        axis = ("batch", "head", "query", "key").index(point.softmax_axis)
        slices: dict[tuple[int, ...], list[Place]] = {}
        for place in logits:
            slices.setdefault((*place[:axis], 0, *place[axis + 1 :]), []).append(place)
        for start, slice_ in slices.items():
            sinks = _sinks(problem, point, start[1]) if point.softmax_axis == "key" else []
            softmax = _softmax([logits[p] for p in slice_], sinks)
            weights.update(zip(slice_, softmax, strict=True))
    if point.mask_operation == "multiply-weights":
        weights = {p: w if admits(problem, point, *p) else ZERO for p, w in weights.items()}
    return weights


def _sinks(problem: Problem, point: Any, h: int) -> list[Number]:
    """The logits of keys without a value: a given one, and a zero."""
    given = [] if problem.sinks is None else [number(problem.sinks[h])]
    return [*given, ZERO] if point.null_key else given


def _memory_logit(problem: Problem, point: Any, b: int, h: int, i: int) -> Number | None:
    """The capped score of a key that every query attends, without any mask or bias."""
    memory = (problem.learned or {}).get("bias_k")
    if memory is None:
        return None
    key = memory[kv_head(problem, point, h)]
    product = dot([number(c) for c in problem.query[b][h][i]], [number(c) for c in key])
    if "temperature" in (problem.learned or {}):
        product = product * number((problem.learned or {})["temperature"][h])
    return _cap(problem, scale_of(problem, point) * product)


def _softmax(logits: list[Number], sinks: list[Number]) -> list[Number]:
    """The weights of some logits; sinks are more of them whose weights are dropped."""
    entries = [*logits, *sinks]
    finite = [logit for logit in entries if not logit.is_minus_infinity]
    if not finite:
        return [ZERO for _ in logits]
    top = largest(finite)
    powers = [ZERO if logit.is_minus_infinity else exp(logit - top) for logit in entries]
    everything = total(powers)
    return [power / everything for power in powers[: len(logits)]]


def _output(problem: Problem, point: Any, weights: Table, b: int, h: int, i: int, c: int) -> Number:
    values = problem.value[b][kv_head(problem, point, h)] if problem.sizes.key_length else []
    row = [weights[b, h, i, j] for j in range(problem.sizes.key_length)]
    # A weight of exactly zero must not let a NaN value through.
    read = [(w, number(v[c])) for w, v in zip(row, values, strict=True) if w != ZERO]
    memory = (problem.learned or {}).get("bias_v")
    if memory is not None:
        own = weights[b, h, i, problem.sizes.key_length]
        read.append((own, number(memory[kv_head(problem, point, h)][c])))
    return total(weight * value for weight, value in read)
