"""Normalised and turned heads, slopes and modified scores: one channel, one pair at a time."""

from __future__ import annotations

import math
from typing import Any

from .numbers import Number, cos, dot, largest, number, power, root, sin, total


def position(problem: Any, point: Any, b: int, i: int) -> int:
    """Where query i of an item stands: where the call says, or among the keys."""
    if problem.query_positions is not None:
        return int(problem.query_positions[b][i])
    shift = problem.sizes.key_length - problem.sizes.query_length
    return i + shift if point.causal_alignment == "bottom-right" else i


def position_of_key(problem: Any, b: int, j: int) -> int:
    """Where key j of an item stands: where the call says, or at its place."""
    return j if problem.key_positions is None else int(problem.key_positions[b][j])


def prepared(
    heads: list[Any],
    h: int,
    place: int,
    point: Any,
    tables: list[Any] | None = None,
    weight: list[Any] | None = None,
) -> list[Number]:
    """Head h of a token, normalised, weighed and turned by its position, or its row of tables."""
    size = len(heads[h])
    own = slice(h * size, (h + 1) * size)
    every = [number(channel) for head in heads for channel in head]
    row = None if tables is None else tables[place]
    both = point.rotary != "none" and point.qk_norm != "none"
    if both and point.norm_order == "after-rotary":  # of single heads, without weights
        return _normalised(_turned(every[own], place, point, row), point)
    head = _normalised(every, point)[own] if point.qk_norm_over == "all-heads" else every[own]
    head = head if point.qk_norm_over == "all-heads" else _normalised(head, point)
    if weight is not None:
        factors = weight if len(weight) == size else weight[own]
        head = [channel * number(factor) for channel, factor in zip(head, factors, strict=True)]
    return _turned(head, place, point, row)


def _normalised(head: list[Number], point: Any) -> list[Number]:
    if point.qk_norm == "none" or not head:
        return head
    size, epsilon = number(len(head)), number(point.qk_norm_epsilon)
    if point.qk_norm == "layer":
        mean = total(head) / size
        head = [channel - mean for channel in head]
    squares = dot(head, head)
    if point.qk_norm == "l2":
        divisor = largest([root(squares), epsilon])
    else:
        divisor = root(squares / size + epsilon)
    return [channel / divisor for channel in head]


def _turned(head: list[Number], place: int, point: Any, row: list[Any] | None) -> list[Number]:
    if point.rotary == "none":
        return head
    turning = int(len(head) * point.rotary_fraction) // 2 * 2
    return [_channel(head, c, turning, place, point, row) for c in range(len(head))]


def _channel(
    head: list[Number], c: int, turning: int, place: int, point: Any, row: list[Any] | None
) -> Number:
    if c >= turning:
        return head[c]
    half = turning // 2
    pair, leads = (c % half, c < half) if point.rotary == "halves" else (c // 2, c % 2 == 0)
    partner = (c + half) % turning if point.rotary == "halves" else c + 1 - 2 * (c % 2)
    if row is None:
        angle = number(place) * _frequency(pair, turning, point)
        amplitude = number(point.rotary_amplitude)
        cosine, sine = amplitude * cos(angle), amplitude * sin(angle)
    else:
        cosine, sine = number(row[pair].real), number(row[pair].imag)
    if leads:
        return head[c] * cosine - head[partner] * sine
    return head[partner] * sine + head[c] * cosine


def _frequency(pair: int, turning: int, point: Any) -> Number:
    """The angle that one position adds to a pair of so many channels."""
    name, *numbers = point.rotary_scaling or ("none",)
    base = point.rotary_base
    if name == "ntk":  # as transformers computes it, with plain floats in the exponent alone
        base = float(base) * numbers[0] ** (turning / max(turning - 2, 1))
    own = power(base, number(-2.0 * pair) / number(turning))
    if name in ("none", "ntk"):
        return own
    slow = own / number(numbers[0])
    if name == "linear":
        return slow
    if name == "llama3":
        wavelength = 2 * math.pi / float(base) ** (-2.0 * pair / turning)
        _, low, high, length = numbers
        if wavelength > length / low:
            return slow
        if wavelength < length / high:
            return own
        smooth = (number(length / (2 * math.pi)) * own - number(low)) / number(high - low)
        return (number(1.0) - smooth) * slow + smooth * own
    _, fast, slowest, length = numbers
    ends = [
        turning * math.log(length / (times * 2 * math.pi)) / (2 * math.log(base))
        for times in (fast, slowest)
    ]
    first, last = max(math.floor(ends[0]), 0), min(math.ceil(ends[1]), turning - 1)
    ramp = (pair - first) / (last - first or 0.001)
    part = number(min(max(ramp, 0.0), 1.0))
    return slow * part + own * (number(1.0) - part)


def slope(num_heads: int, h: int) -> Number:
    """How much one position of distance takes off a logit of head h (Press et al. 2022)."""
    whole = 2 ** int(math.log2(num_heads))
    if h < whole:
        return power(2.0, number(-8.0 * (h + 1)) / number(whole))
    return power(2.0, number(-4.0 * (2 * (h - whole) + 1)) / number(whole))


def distance_bias(problem: Any, point: Any, b: int, h: int, i: int, j: int) -> Number:
    """What ALiBi adds to a logit, by given slopes where there are some."""
    apart = abs(position(problem, point, b, i) - position_of_key(problem, b, j))
    given = (problem.learned or {}).get("alibi_slopes")
    if given is None:
        return number(-apart) * slope(problem.sizes.num_heads, h)
    return number(-apart) * number(given[b][h] if isinstance(given[0], list) else given[h])


def relative_entry(problem: Any, point: Any, b: int, h: int, i: int, j: int) -> Number:
    """What a table of biases adds to a logit: the entry for how far the key is ahead."""
    table = problem.learned["relative_table"]
    ahead = position_of_key(problem, b, j) - position(problem, point, b, i)
    if point.relative == "clipped":
        farthest = (len(table) - 1) // 2
        return number(table[max(-farthest, min(farthest, ahead)) + farthest][h])
    if point.relative == "t5":
        rows = table[len(table) // 2 :] if ahead > 0 else table[: len(table) // 2]
        return number(rows[_t5_bucket(abs(ahead), len(rows), point.relative_distance)][h])
    return number(table[_t5_bucket(max(-ahead, 0), len(table), point.relative_distance)][h])


def _t5_bucket(distance: int, rows: int, farthest: int) -> int:
    """One bucket a distance in the first half, then one for each equal ratio up to the last."""
    alone = rows // 2
    if distance < alone:
        return distance
    steps = rows - alone
    ratio = (farthest / alone) ** (1.0 / steps)
    bucket = alone
    while bucket < rows - 1 and distance >= alone * ratio ** (bucket - alone + 1):
        bucket += 1
    return bucket


def relative_positions(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    """A ``score_mod`` for tensors and for single numbers: a bias of every index, and a factor."""
    return _of(score, 2.0) * score + _of(score, 0.25) * _of(score, query - key + 2 * head - batch)


def leaning(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    """Another one, which turns the sign of every score and knows no index."""
    del batch, head, query, key
    return _of(score, -0.5) * score


def _of(score: Any, factor: Any) -> Any:
    """A factor that a score can be multiplied by, be it a tensor or a ``Number``."""
    return number(float(factor)) if isinstance(score, Number) else factor
