"""Stray influence: answers that depend on values of foreign keys, heads, items or channels.

The dependences of items, heads and channels, and exchanged keys, are found without looking for a
cause. Partly lost caches are found as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...clauses.subject import Subject
from ...problems.caching import with_part_of_cache
from ...problems.inputs import Inputs
from ...tolerance import model
from ..battery import answer_to
from ..mistakes import DeclaredCall, NamedMistake
from ..mistakes.named_mistake import InputsChange
from .reading import ROOM, Reading, read, readable, statement

# A weight must exceed its error this many times before a small logit, or its ratio to the right
# weight, is read from it.
CLEAR: Final = 20.0
# Names of a place along the axes of heads ``[B, H, L, D]``.
PLACES: Final = ("batch item", "head", "token", "channel")
# Pairs of places, and keys, that a fact names.
_MOST_NAMED: Final = 6


def influence_facts(subject: Subject, inputs: Inputs) -> list[str]:
    """Return sentences: which places read values of others, which keys replace which.

    Each is an observation at the given inputs, whatever the cause.
    """
    if inputs.is_layer:
        return list(_across(subject, inputs, (0,))) if inputs.past == 0 else []
    if not readable(inputs):
        return []
    texts = list(_across(subject, inputs, (0, 1, 3)))
    reading = None if texts else read(subject, inputs)
    if reading is not None and reading.explained:
        texts += _other_keys(reading)
        texts += [] if texts else _tile_facts(reading)
    return texts


def _tile_facts(reading: Reading) -> list[str]:
    """Name the tile size within which weights are in proportion, but not between tiles.

    Empty if the first tile is not followed by another as large: its end alone is no size.
    """
    keys = reading.weights.shape[-1]
    return [
        f"within each tile of {size} keys weights are in the right proportion, but not from one "
        "tile to another"
        for size in tile_sizes(reading)[:1]
        if 2 * size <= keys
    ]


def tile_sizes(reading: Reading) -> list[int]:
    """Return tile sizes within which weights are in proportion, but not between tiles.

    Largest first; empty if weights are right, or wrong within all tiles.
    """
    exact, read = reading.attention.weights, reading.weights
    clear = exact > CLEAR * reading.error
    ratio = torch.where(clear, read / exact, math.nan)
    room = (
        CLEAR * reading.error / exact.clamp_min(model.SMALLEST_READ)
        + 2.0 * reading.same * ratio.abs()
    )
    apart = ratio.diff(dim=-1).abs() > room[..., 1:] + room[..., :-1]
    breaks = (apart.flatten(0, -2).any(0).nonzero().flatten() + 1).tolist()
    widest = math.gcd(*breaks)
    return [size for size in range(widest, 1, -1) if widest % size == 0]


def _across(subject: Subject, inputs: Inputs, axes: tuple[int, ...]) -> Iterator[str]:
    plain = answer_to(subject, inputs)
    if plain is None or plain.output.shape != inputs.output_shape:
        return
    value, bound = inputs.value, subject.golden(inputs).bound
    point = subject.declaration.semantics
    for axis in axes:
        count = value.shape[axis]
        own = list(range(count))
        if PLACES[axis] == "head":  # several may share values
            places = torch.arange(count).view(1, -1, 1, 1)
            own = golden.repeat_heads(places, plain.output.shape[axis], point).flatten().tolist()
        pairs: list[tuple[int, int]] = []
        for place in range(count):
            changed = value.clone()
            changed.select(axis, place).neg_()
            other = answer_to(subject, _change_values(inputs, changed))
            if other is None or other.output.shape != plain.output.shape:
                break
            moved = (other.output - plain.output).abs() > 2.0 * ROOM * bound
            read_by = moved.transpose(0, axis).flatten(1).any(dim=-1).nonzero().flatten().tolist()
            pairs += [(reader, place) for reader in read_by if own[reader] != place]
        if pairs:
            what = "tokens" if inputs.is_layer else "values"
            yield (
                f"answers change with {what} that are not theirs: those of {PLACES[axis]} "
                f"{_listed(sorted(pairs))}"
            )


def _change_values(inputs: Inputs, value: Tensor) -> Inputs:
    if inputs.mode == "separate":
        return inputs.with_tokens(value=value)
    return inputs.with_tokens(key=value)


def _listed(pairs: list[tuple[int, int]]) -> str:
    shown = ", ".join(f"{one} with {other}" for one, other in pairs[:_MOST_NAMED])
    return f"{shown}, …" if len(pairs) > _MOST_NAMED else shown


def _other_keys(reading: Reading) -> Iterator[str]:
    exact, got = reading.attention.weights, reading.weights
    room = ROOM * float(reading.error.max())
    columns, golden = got.flatten(0, 2).T, exact.flatten(0, 2).T
    apart = torch.cdist(columns, golden, p=float("inf"))
    nearest = apart.argmin(dim=-1)
    places = list(enumerate(nearest.tolist()))
    unlike = [(place, key) for place, key in places if place != key]
    matched = bool((apart.amin(dim=-1) <= room).all())
    if unlike and matched and len(set(nearest.tolist())) == len(places):
        shown = ", ".join(f"{place} the weight of {key}" for place, key in unlike[:_MOST_NAMED])
        more = ", …" if len(unlike) > _MOST_NAMED else ""
        yield f"of {len(places)} keys values have each other's weights: value {shown}{more}"


@dataclass(frozen=True)
class UsedPart:
    """A range of the cached keys: from one index up to before another.

    The indices follow from the numbers of cached and of all keys; ``words`` follow "of a cache".
    """

    words: str
    first: Callable[[int, int], int] = lambda _past, _count: 0
    end: Callable[[int, int], int] = lambda past, _count: past

    def left(self, past: int, count: int) -> slice:
        """Return the remaining cached keys, from the numbers of cached and of all keys."""
        return slice(max(self.first(past, count), 0), max(self.end(past, count), 0))


def _keys_in_words(number: int, which: str) -> str:
    return f"the {which} key and value" if number == 1 else f"the {which} {number} keys and values"


def lost_cache_statements(reading: Reading) -> Iterator[NamedMistake]:
    """Yield caches without their front or end; the rest stands right before the new keys."""
    past, count = reading.call.inputs.past, reading.sizes.key_length
    seen = reading.visible.flatten(0, -2).any(0)
    used = seen[:past].nonzero().flatten().tolist()
    if not used or len(used) == past or not bool(seen[past:].all()):
        return
    first, end = used[0], used[-1] + 1
    front = [
        UsedPart(f"{_keys_in_words(past - first, 'last')} alone", lambda p, _n: p - past + first),
        UsedPart(f"all but {_keys_in_words(first, 'first')}", lambda _p, _n: first),
        UsedPart(
            f"as many of the last keys and values as make {count - first} with new ones",
            lambda _p, n: n - count + first,
        ),
    ]
    back = [
        UsedPart(f"all but {_keys_in_words(past - end, 'last')}", end=lambda p, _n: p - past + end),
        UsedPart(f"{_keys_in_words(end, 'first')} alone", end=lambda _p, _n: end),
    ]
    for part in (front if end == past else []) + (back if first == 0 else []):
        yield statement(
            f"cache: {part.words}",
            f"of a cache {part.words} are used",
            "attend every cached key, and let places count all of them",
            inputs=_keep_part(part),
        )


def _keep_part(part: UsedPart) -> InputsChange:
    def inputs_for(call: DeclaredCall) -> Inputs | None:
        inputs = call.inputs
        if not inputs.past:
            return None
        return with_part_of_cache(inputs, part.left(inputs.past, inputs.geometry.key_length))

    return inputs_for
