"""Stray influence: values of other keys, heads, items and channels that an answer is made of.

An order in which values are read is looked for among those that people write; which items, heads
and channels read which others, and which key stands for which, is read without looking for a cause.
A part of a cache may be lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ..._golden import golden
from ...base.geometry import Geometry
from ...clauses.subject import Subject
from ...problems.caching import with_part_of_cache
from ...problems.inputs import Inputs
from ...tolerance import model
from ..battery import answer_to
from ..mistakes import DeclaredCall, NamedMistake, NotExpressible
from ..mistakes._steps import BLOCKS, weighing
from ..mistakes.named_mistake import Heads, InputsChange
from .reading import ROOM, Reading, read, readable, statement
from .tiles import channel_tiles
from .visibility import CLEAR

Order = Callable[[int], Tensor]
# The axes of heads ``[B, H, L, D]``, and what one place of each is called.
PLACES: Final = ("batch item", "head", "token", "channel")
# Pairs of places, and keys, that a fact names.
_MOST_NAMED: Final = 6


def _within_tiles(size: int) -> Order:
    return lambda count: torch.cat([part.flip(0) for part in torch.arange(count).split(size)])


def _in_tiles(order: Order, size: int) -> Order:
    """Whole tiles in some order; the last one may be smaller than the rest."""

    def of(count: int) -> Tensor:
        tiles = torch.arange(count).split(size)
        return torch.cat([tiles[i] for i in order(len(tiles)).tolist()])

    return of


def _clamped(exchange: Callable[[Tensor], Tensor]) -> Order:
    """An exchange of places that leaves those without a partner where they are."""

    def order(count: int) -> Tensor:
        own = torch.arange(count)
        other = exchange(own)
        return torch.where(other < count, other, own)

    return order


def _evens_first(count: int) -> Tensor:
    own = torch.arange(count)
    return torch.cat([own[::2], own[1::2]])


def _odds_first(count: int) -> Tensor:
    own = torch.arange(count)
    return torch.cat([own[1::2], own[::2]])


def _inverse(order: Order) -> Order:
    return lambda count: order(count).argsort()


# Orders of tiles, as those of pages that a table names wrongly.
_OF_TILES: Final[tuple[tuple[str, Order], ...]] = (
    ("in the reverse order", lambda count: torch.arange(count).flip(0)),
    ("of which the last comes first", lambda count: torch.arange(count).roll(1)),
    ("of which the first comes last", lambda count: torch.arange(count).roll(-1)),
    ("exchanged in pairs", _clamped(lambda own: own ^ 1)),
)
# Orders of places along an axis: place i reads what stands at ``order(count)[i]``.
ORDERS: Final[tuple[tuple[str, Order], ...]] = (
    ("exchanged in pairs", _clamped(lambda own: own ^ 1)),
    ("in the order of even places, then odd ones", _evens_first),
    ("in the order of odd places, then even ones", _odds_first),
    ("dealt out to even places, then to odd ones", _inverse(_evens_first)),
    ("dealt out to odd places, then to even ones", _inverse(_odds_first)),
    ("with their halves exchanged", lambda count: torch.arange(count).roll(count // 2)),
    ("with the first and the last exchanged", lambda count: _ends_exchanged(torch.arange(count))),
    *((f"reversed in each tile of {size}", _within_tiles(size)) for size in BLOCKS[1:]),
)
_PAGES: Final = tuple(
    (f"with tiles of {size} {words}", _in_tiles(order, size))
    for words, order in _OF_TILES
    for size in BLOCKS[1:]
)


def _ends_exchanged(own: Tensor) -> Tensor:
    last = len(own) - 1
    return torch.where(own == 0, last, torch.where(own == last, 0, own))


def orders(reading: Reading) -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    """Orders of values along one axis that the values of a reading may have.

    Keys where the weights explain the answer, for then each key has a weight; else other axes.
    """
    for axis in (2,) if reading.explained else (0, 1, 3):
        yield from orders_along(axis, reading.attention.value.shape[axis])


@lru_cache(maxsize=64)
def orders_along(
    axis: int, count: int, *, pages: bool = False
) -> tuple[tuple[str, Callable[[Tensor], Tensor]], ...]:
    """Orders that move one of ``count`` places along an axis; with ``pages`` all of tiles."""
    return tuple(
        (f"of {PLACES[axis]}s {words}", _ordered(order, axis))
        for words, order in (*ORDERS, *(_PAGES if pages else _PAGES[: len(BLOCKS) - 1]))
        if not torch.equal(order(count), torch.arange(count))
    )


def _ordered(order: Order, axis: int) -> Callable[[Tensor], Tensor]:
    return lambda tensor: tensor.index_select(axis, order(tensor.shape[axis]))


def in_turns(sizes: Geometry) -> Tensor | None:
    """The head ``g * Hkv + j`` in the place of ``j * G + g``, G of them a group; None if alike."""
    groups = sizes.num_kv_heads
    if groups in (0, 1, sizes.num_heads):
        return None
    return torch.arange(sizes.num_heads).reshape(-1, groups).T.flatten()


def first(axis: int) -> Callable[[Tensor], Tensor]:
    """What stands first along an axis, everywhere."""
    return lambda tensor: tensor.narrow(axis, 0, 1).expand_as(tensor)


def last(axis: int) -> Callable[[Tensor], Tensor]:
    """What stands last along an axis, everywhere."""
    return lambda tensor: tensor.narrow(axis, tensor.shape[axis] - 1, 1).expand_as(tensor)


def _halves_exchanged(tensor: Tensor) -> Tensor:
    return tensor.roll(tensor.shape[-1] // 2, -1)


def _of_first_tile(size: int) -> Callable[[Tensor], Tensor]:
    return lambda tensor: tensor[:, :, torch.arange(tensor.shape[2]) % size]


def _next(head: Tensor, group: int, kv_heads: int) -> Tensor:
    return ((head + 1) // group).clamp_max(kv_heads - 1)


def _up(number: Tensor, divisor: int) -> Tensor:
    return -(-number // divisor)


def _up_or_last(head: Tensor, heads: int, kv_heads: int) -> Tensor:
    return _up(head * kv_heads, heads).clamp_max(kv_heads - 1)


# The key/value head that each query head reads, of numbers of query heads and of key/value heads.
GROUPINGS: Final[tuple[tuple[str, Callable[[Tensor, int, int], Tensor]], ...]] = (
    ("h // their number, or the last", lambda h, _of, kv: (h // kv).clamp_max(kv - 1)),
    ("h // their number, modulo it", lambda h, _of, kv: h // kv % kv),
    ("(h + 1) // group, or the first", lambda h, of, kv: (h + 1) // (of // kv) % kv),
    ("(h + 1) // group, at most the last", lambda h, of, kv: _next(h, of // kv, kv)),
    ("(h - 1) // group, or the last", lambda h, of, kv: (h - 1) // (of // kv) % kv),
    ("h * their number / the query heads, rounded up", lambda h, of, kv: _up(h * kv, of) % kv),
    ("h * their number / the query heads, rounded up, or the last", _up_or_last),
    ("h * group, modulo their number", lambda h, of, kv: h * (of // kv) % kv),
)


def regrouped(
    order: Callable[[Tensor, int, int], Tensor],
) -> Callable[[DeclaredCall, Heads], Heads]:
    """The key/value heads in some order, one for each query head."""

    def heads(call: DeclaredCall, before: Heads) -> Heads:
        count, shared = before[0].shape[1], call.inputs.geometry.num_kv_heads
        read = order(torch.arange(count), count, max(shared, 1))
        return before[0], before[1][:, read], before[2][:, read]

    return heads


OVER_ITEMS: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("averaged over the batch items", lambda t: t.mean(0, keepdim=True).expand_as(t)),
    ("summed over the batch items", lambda t: t.sum(0, keepdim=True).expand_as(t)),
)
_LESS_MEANS: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("less its mean over the batch items", lambda t: t - t.mean(0, keepdim=True)),
    ("less its mean over the heads", lambda t: t - t.mean(1, keepdim=True)),
)
CHANGES: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("of the first batch item", first(0)),
    ("of the last batch item", last(0)),
    ("of the batch item before", lambda t: t.roll(1, 0)),
    ("of the batch item after", lambda t: t.roll(-1, 0)),
    ("of the opposite batch item", lambda t: t.flip(0)),
    ("of the first head", first(1)),
    ("of the last head", last(1)),
    ("of the head before", lambda t: t.roll(1, 1)),
    ("of the head after", lambda t: t.roll(-1, 1)),
    ("of the opposite head", lambda t: t.flip(1)),
    ("of the first token", first(2)),
    ("of the last token", last(2)),
    ("of the token before", lambda t: t.roll(1, 2)),
    ("of the token after", lambda t: t.roll(-1, 2)),
    ("of the token counted from the end", lambda t: t.flip(2)),
    ("with its channels reversed", lambda t: t.flip(-1)),
    ("with its channels moved by one", lambda t: t.roll(1, -1)),
    ("with the halves of its channels exchanged", _halves_exchanged),
    ("averaged over the tokens", lambda t: t.mean(2, keepdim=True).expand_as(t)),
    ("averaged over the heads", lambda t: t.mean(1, keepdim=True).expand_as(t)),
    ("summed over the heads", lambda t: t.sum(1, keepdim=True).expand_as(t)),
    ("less its mean over the tokens", lambda t: t - t.mean(2, keepdim=True)),
    ("less its mean over the channels", lambda t: t - t.mean(-1, keepdim=True)),
    ("divided by its length", lambda t: normalize(t, dim=-1)),
    ("without its sign", torch.abs),
    ("with zeros for what is negative", torch.relu),
    ("summed up over the tokens so far", lambda t: t.cumsum(2)),
    *(
        (f"of the same place in the first tile of {size}", _of_first_tile(size))
        for size in BLOCKS[3:]
    ),
)
SPREAD: Final = (
    *CHANGES,
    *OVER_ITEMS,
    ("averaged over the channels", lambda t: t.mean(-1, keepdim=True).expand_as(t)),
)
CHANGED: Final = (*CHANGES, *OVER_ITEMS, *_LESS_MEANS)


AXIS_ORDERS: Final = tuple(permutations(range(4)))[1:]
_AXES: Final = ("batch", "heads", "tokens", "channels")


def _viewed(order: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """The memory of a tensor with its axes in another order, read as if in the right one."""
    return lambda tensor: tensor.permute(order).reshape(tensor.shape)


def _read_back(order: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """The memory of a tensor read as if its axes were in another order."""

    def view(tensor: Tensor) -> Tensor:
        shape = [tensor.shape[axis] for axis in order]
        inverse = [order.index(axis) for axis in range(len(order))]
        return tensor.reshape(shape).permute(inverse)

    return view


def _zero_at(part: slice) -> Callable[[Tensor], Tensor]:
    def move(tensor: Tensor) -> Tensor:
        changed = tensor.clone()
        changed[..., part] = 0.0
        return changed

    return move


def _moves() -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    yield from CHANGES
    yield from channel_tiles()
    for words, part in (("first", slice(0, 1)), ("last", slice(-1, None))):
        yield f"with a zero in its {words} channel", _zero_at(part)
    for order in AXIS_ORDERS:
        axes = ", ".join(_AXES[axis] for axis in order)
        yield f"laid out as {axes} and read as {', '.join(_AXES)}", _viewed(order)
        yield f"laid out as {', '.join(_AXES)} and read as {axes}", _read_back(order)


# What may stand in the place of queries, keys, values or answers ``[B, H, L, D]``.
MOVES: Final = tuple(_moves())


def influence_facts(subject: Subject, inputs: Inputs) -> list[str]:
    """Which items, heads and channels read values of others, and which keys stand for which.

    Each is what was seen at some inputs, in a sentence, whatever the cause.
    """
    if inputs.is_layer:
        return list(_across(subject, inputs, (0,))) if inputs.past == 0 else []
    if not readable(inputs):
        return []
    texts = list(_across(subject, inputs, (0, 1, 3)))
    reading = None if texts else read(subject, inputs)
    if reading is not None and reading.explained:
        texts += _other_keys(reading)
        texts += [] if texts else _between_tiles(reading)
    return texts


def _between_tiles(reading: Reading) -> list[str]:
    """In which tiles of keys weights are in proportion, and from which to which they are not.

    Nothing where the first tile is not followed by another as large: its end alone is no size.
    """
    keys = reading.weights.shape[-1]
    return [
        f"within each tile of {size} keys weights are in the right proportion, but not from one "
        "tile to another"
        for size in tile_sizes(reading)[:1]
        if 2 * size <= keys
    ]


def tile_sizes(reading: Reading) -> list[int]:
    """Sizes of tiles within which weights are in the right proportion, but not from one to another.

    The largest first; none where weights are right, or wrong within whatever tiles.
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
    """Pairs of places along each axis of which one changes with the values of the other."""
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
            other = answer_to(subject, _with_values(inputs, changed))
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


def _with_values(inputs: Inputs, value: Tensor) -> Inputs:
    if inputs.mode == "separate":
        return inputs.with_tokens(value=value)
    return inputs.with_tokens(key=value)


def _listed(pairs: list[tuple[int, int]]) -> str:
    shown = ", ".join(f"{one} with {other}" for one, other in pairs[:_MOST_NAMED])
    return f"{shown}, …" if len(pairs) > _MOST_NAMED else shown


def _other_keys(reading: Reading) -> Iterator[str]:
    """The keys whose weight stands at another key's value, where every weight does so."""
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


def turned_weight_statements(reading: Reading) -> Iterator[NamedMistake]:
    """Weights of another head of a group: heads are dealt out in turns."""
    order = in_turns(reading.sizes)
    weights = reading.attention.weights
    if order is None or not reading.agree(reading.weights, weights[:, order]):
        return

    def core(call: DeclaredCall, attention: golden.Attention) -> golden.Attention | None:
        order = in_turns(call.inputs.geometry)
        return None if order is None else weighing(attention, attention.weights[:, order])

    yield statement(
        "weights: of the head dealt out in turns over the groups",
        "values meet the weights of the head that follows if heads are dealt out in turns over "
        "the groups",
        "let the weights of each head meet the values that this head reads",
        core=core,
        misplaces=True,
    )


def exchanged_weight_statements(reading: Reading) -> Iterator[NamedMistake]:
    """Weights whose items and heads are exchanged, which only as many of both allow."""
    weights = reading.attention.weights
    if weights.shape[0] == weights.shape[1] and reading.agree(
        reading.weights, weights.transpose(0, 1)
    ):
        yield statement(
            "weights: with items and heads exchanged",
            "values of head h of item b meet the weights of head b of item h",
            "let the weights of each head and item meet the values of the same head and item",
            core=_exchanged,
            misplaces=True,
        )


def _exchanged(_call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
    if attention.weights.shape[0] != attention.weights.shape[1]:
        raise NotExpressible
    return weighing(attention, attention.weights.transpose(0, 1))


@dataclass(frozen=True)
class UsedPart:
    """Some of the cached keys, or none: those from one index up to before another.

    The indices are made of the numbers of cached and of all keys; ``words`` follow "of a cache".
    """

    words: str
    first: Callable[[int, int], int] = lambda _past, _count: 0
    end: Callable[[int, int], int] = lambda past, _count: past

    def left(self, past: int, count: int) -> slice:
        """The cached keys that are left, by the numbers of those and of all keys."""
        return slice(max(self.first(past, count), 0), max(self.end(past, count), 0))


def _keys_in_words(number: int, which: str) -> str:
    return f"the {which} key and value" if number == 1 else f"the {which} {number} keys and values"


def lost_cache_statements(reading: Reading) -> Iterator[NamedMistake]:
    """A cache of which the front or the end is lost: what is left stands right before new keys."""
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
            inputs=_with_part(part),
        )


def _with_part(part: UsedPart) -> InputsChange:
    def inputs_for(call: DeclaredCall) -> Inputs | None:
        inputs = call.inputs
        if not inputs.past:
            return None
        return with_part_of_cache(inputs, part.left(inputs.past, inputs.geometry.key_length))

    return inputs_for
