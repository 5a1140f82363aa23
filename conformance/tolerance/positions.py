"""The errors of positions: added sinusoids, biases by distance, turned heads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from conformance._golden import golden

from . import model
from .contract import Contract


def position_bound(tokens: Tensor, dtype: torch.dtype) -> Tensor:
    """How far ``tokens + positions`` computed in a dtype may be from the exact sum.

    ``tokens`` is ``[..., L, E]``; the result is float64 of that shape. The error of the angle grows
    with the position: at position 1000 float32 knows the fastest sine to about 1e-3.
    """
    length, width = tokens.shape[-2], tokens.shape[-1]
    unit = model.UNIT_ROUNDOFF[str(dtype).removeprefix("torch.")]
    angle = torch.arange(length, dtype=torch.float64)[:, None] * golden.frequencies(width)
    relative = (model.FREQUENCY_ROUNDINGS * math.log(10000.0) + model.ANGLE_ROUNDINGS) * unit
    table = (relative * angle + model.SINE_ROUNDINGS * unit).repeat_interleave(2, dim=-1)
    total = table + unit * (tokens.double().abs() + 1.0 + table)
    # A float64 candidate is compared with a golden that carries errors of the same size.
    return total * 2.0 if dtype == torch.float64 else total


def distance_size(attention: golden.Attention) -> Tensor:
    """The largest number that a correct bias by distance may be made of: ``[1 or B, H, Lq, n]``.

    Behind a causal mask ``slope * j``, counted from the first key, and ``slope * (j - Lk + 1)``,
    counted from the last, equal it but for what a row has in common: Press et al.'s own code, BLOOM
    and MPT store these. What stands for no key (a sink) has none. Positions that a call gives may
    be multiplied by the slope before they are subtracted. Entries of a table are what they are.
    """
    if attention.semantics.relative != "none" and attention.alibi is not None:
        return attention.alibi.abs()
    length = attention.given_key.shape[-2]
    slopes = golden.alibi_slopes(attention.query.shape[1]).unsqueeze(0)
    slopes = slopes if attention.slopes is None else attention.slopes.abs()
    more = attention.logits.shape[-1] - length
    sizes = slopes[..., None, None] * farthest_distance(attention)
    return torch.nn.functional.pad(sizes, (0, more))


def farthest_distance(attention: golden.Attention) -> Tensor:
    """The largest number that a correct distance may be made of: ``[Lq, Lk]``, or ``[B, 1, …]``."""
    length = attention.given_key.shape[-2]
    keys, queries = attention.key_places[..., None, :], attention.query_places[..., None]
    farthest = torch.maximum((queries - keys).abs(), keys)
    if keys.dim() == len(("query", "key")):
        return torch.maximum(farthest, length - 1 - keys)
    return torch.maximum(farthest, queries)


def distance_error(attention: golden.Attention, size: Tensor, contract: Contract) -> Tensor:
    """The error of the sum of a score and its bias, worst case: ``[B, H, Lq, Lk]``."""
    sums = model.BIAS_ROUNDINGS * contract.accumulator_roundoff
    stored = model.DISTANCE_STORES * contract.unit_roundoff * (1.0 + contract.unit_roundoff)
    return sums * (attention.modified.abs() + size) + stored * size


# Tables of more positions are large, and seldom needed again.
REMEMBERED_LENGTH = 513


@dataclass(frozen=True, kw_only=True, eq=False)
class Rotation:
    """Channels that turn together, int64 ``[R/2]`` both, and their angles ``[.., L, R/2]``.

    ``cosine`` and ``sine`` are exact, the errors bound those of a correct table, ``cosine_angle``
    and ``sine_angle`` their part before the table is stored, ``table_stores`` times. Tables that a
    call gives are stored by nobody.
    """

    first: Tensor
    second: Tensor
    cosine: Tensor
    sine: Tensor
    cosine_error: Tensor
    sine_error: Tensor
    cosine_angle: Tensor
    sine_angle: Tensor
    table_stores: int = model.TABLE_STORES

    def spread(self, heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Return ``|a| cosine + |b| sine`` for each channel a, its partner b: ``[B, H, L, D]``."""
        return self._put(heads.clone(), heads, cosine, sine)

    def turned_alone(self, heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Return :meth:`spread` with zero in the channels that are not turned."""
        return self._put(torch.zeros_like(heads), heads, cosine, sine)

    def _put(self, turned: Tensor, heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        first, second = heads[..., self.first], heads[..., self.second]
        turned[..., self.first] = first * cosine + second * sine
        turned[..., self.second] = first * sine + second * cosine
        return turned

    def only_turned(self, heads: Tensor) -> Tensor:
        """Zero the channels that are not turned."""
        kept = torch.zeros_like(heads)
        for chosen in (self.first, self.second):
            kept[..., chosen] = heads[..., chosen]
        return kept


def rotation_of(
    attention: golden.Attention, positions: Tensor, size: int, contract: Contract
) -> Rotation:
    """The rotation of heads of a size, whose tokens stand at ``[L]``, or ``[B, 1, L]``."""
    if attention.rotary_tables is None:
        return rotation(positions, size, attention.semantics, contract)
    first, second = golden.rotary_pairs(size, attention.semantics)
    given = golden.rows_at(attention.rotary_tables, positions)
    if not given.is_complex():
        frequency = torch.ones(given.shape[-1], dtype=torch.float64)
        return _by_angles(given, frequency, attention.semantics, size, contract)
    cosine, sine = given.real.abs(), given.imag.abs()
    # The golden takes them apart into an angle and a length, in float64.
    error = model.GIVEN_TABLE_ROUNDINGS * model.UNIT_ROUNDOFF["float64"] * given.abs()
    return Rotation(
        first=first,
        second=second,
        cosine=cosine,
        sine=sine,
        cosine_error=error,
        sine_error=error,
        cosine_angle=error,
        sine_angle=error,
        table_stores=0,
    )


def rotation(
    positions: Tensor, head_size: int, semantics: golden.Semantics, contract: Contract
) -> Rotation:
    """Return the rotation of tokens at positions; cached unless there are many, or they differ."""
    if positions.numel() > REMEMBERED_LENGTH or positions.dim() > 1:
        return _rotation(positions, head_size, semantics, contract)
    places = tuple(positions.tolist())
    return _remembered(places, head_size, semantics, contract)


@lru_cache(maxsize=256)
def _remembered(
    places: tuple[int, ...], head_size: int, semantics: golden.Semantics, contract: Contract
) -> Rotation:
    return _rotation(torch.tensor(places, dtype=torch.int64), head_size, semantics, contract)


def _rotation(
    positions: Tensor, head_size: int, semantics: golden.Semantics, contract: Contract
) -> Rotation:
    """Return the rotation of tokens at positions ``[L]``, or ``[B, 1, L]``.

    A frequency is a power of the base: an error of the exponent counts as often as its logarithm,
    and the first frequency, 1, has none. The error of an angle grows with the position.
    """
    frequency = golden.rotary_frequencies(head_size, semantics)
    angles = golden.rotary_angles(positions, head_size, semantics)
    return _by_angles(angles, frequency, semantics, head_size, contract)


def _by_angles(
    angles: Tensor,
    frequency: Tensor,
    semantics: golden.Semantics,
    head_size: int,
    contract: Contract,
) -> Rotation:
    """The rotation of pairs of channels by angles, which are multiples of frequencies."""
    pairs, amplitude = golden.rotary_pairs(head_size, semantics), semantics.rotary_amplitude
    # A working dtype that is finer than float32 needs finer angles.
    unit = max(contract.accumulator_roundoff, min(contract.unit_roundoff, model.COARSEST_ANGLE))
    relative = model.FREQUENCY_ROUNDINGS * frequency.log().abs() + model.ANGLE_ROUNDINGS
    if semantics.rotary_scaling is not None:
        relative = relative + model.SCALING_ROUNDINGS
    error = unit * relative * angles.abs()
    cosine, sine = amplitude * angles.cos(), amplitude * angles.sin()
    own = (model.SINE_ROUNDINGS + (amplitude != 1.0)) * unit * amplitude
    stored = model.TABLE_STORES * contract.unit_roundoff

    def moved(slope: Tensor) -> Tensor:
        moves = slope.abs() * error + 0.5 * amplitude * error.square()
        return moves.clamp_max(2.0 * amplitude) + own

    def table(value: Tensor, by_angle: Tensor) -> Tensor:
        return by_angle + stored * (value.abs() + by_angle)

    cosine_angle, sine_angle = moved(sine), moved(cosine)
    return Rotation(
        first=pairs[0],
        second=pairs[1],
        cosine=cosine.abs(),
        sine=sine.abs(),
        cosine_error=table(cosine, cosine_angle),
        sine_error=table(sine, sine_angle),
        cosine_angle=cosine_angle,
        sine_angle=sine_angle,
    )


def rotated_error(
    heads: Tensor, error: Tensor | None, turn: Rotation, contract: Contract
) -> Tensor:
    """How far turned heads may be off, given ``heads [B, H, L, D]`` before and their errors."""
    reached = heads.abs() if error is None else heads.abs() + error
    stores = model.ROTATION_STORES * contract.unit_roundoff
    # The table's own errors, and what storing the products and their sum adds to all of them.
    cosine, sine = (
        wrong + stores * (exact + wrong)
        for exact, wrong in ((turn.cosine, turn.cosine_error), (turn.sine, turn.sine_error))
    )
    turned = turn.turned_alone(reached, cosine, sine)
    lost = model.ROTATION_STORES * contract.underflow
    if lost:
        turned += turn.only_turned(torch.full_like(reached, lost))
    return turned if error is None else turned + turn.spread(error, turn.cosine, turn.sine)


def rotated_variance(
    heads: Tensor,
    variance: Tensor | None,
    shared: Tensor | None,
    turn: Rotation,
    contract: Contract,
) -> tuple[Tensor, Tensor]:
    """Return the variance of turned heads, and the non-random part of their error.

    Errors of the angles are equal for all heads and items, and those of a frequency for all
    positions: they add up in full. ``shared`` are earlier non-random errors. The rounding of a
    stored entry is independent, one for both channels of its pair: a product with both has at most
    twice the variance.
    """
    squares = turn.turned_alone(heads.square(), turn.cosine.square(), turn.sine.square())
    stores = model.ROTATION_STORES + 2 * turn.table_stores
    stored = squares.mul_(stores * contract.unit_roundoff**2)
    if variance is not None:
        stored += turn.spread(variance, turn.cosine.square(), turn.sine.square())
    table = turn.turned_alone(heads.abs(), turn.cosine_angle, turn.sine_angle)
    if shared is not None:
        table = table + turn.spread(shared, turn.cosine, turn.sine)
    return stored, table
