"""Mistakes of the normalisation and rotation of queries and keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import normalize

from .._golden import golden
from ..operators.functions import over_root_mean_square, standardised
from ..operators.operator import axes_of, insert_place
from ..operators.roundings import format_rounding
from ..problems.inputs import Inputs
from .mistakes import NamedMistake

Edit = golden.Edit
_PRIMARY: Final = "position.rotary"
# The rotated stages of queries and keys, their operands, and their angles.
_SIDES: Final = {
    "queries": ("query", "stretched_query", "query_angles"),
    "keys": ("turned_key", "stretched_key", "key_angles"),
}
_NORMALISED: Final = {"queries": "normalised_query", "keys": "normalised_key"}
_BOTH: Final[tuple[tuple[str, ...], ...]] = (("queries", "keys"), ("queries",), ("keys",))
# The rotated channels of a pair, from the channels and the cosine and sine of their angle.
Form = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
_SHORT: Final = {name: format_rounding(name) for name in ("bfloat16", "float16")}


def _turn_rounded(
    a: Tensor, b: Tensor, c: Tensor, s: Tensor, *, short: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    return a * short(c) - b * short(s), b * short(c) + a * short(s)


_FORMS: Final[dict[str, Form]] = {
    "the sine is added in both channels of a pair, though one takes it off": (
        lambda a, b, c, s: (a * c + b * s, b * c + a * s)
    ),
    "the sine is taken off in both channels of a pair, though one adds it": (
        lambda a, b, c, s: (a * c - b * s, b * c - a * s)
    ),
    "the part with the sine is missing": lambda a, b, c, _s: (a * c, b * c),
    "the part with the sine is added to channels that no cosine multiplies": (
        lambda a, b, _c, s: (a - b * s, b + a * s)
    ),
    "the part with the cosine is missing": lambda a, b, _c, s: (-b * s, a * s),
    "each channel meets its own sine instead of that of its partner": (
        lambda a, b, c, s: (a * (c - s), b * (c + s))
    ),
    "only the first channel of each pair is turned": lambda a, b, c, s: (a * c - b * s, b),
    "only the second channel of each pair is turned": lambda a, b, c, s: (a, b * c + a * s),
    **{
        f"sines and cosines are rounded to {name}": partial(_turn_rounded, short=short)
        for name, short in _SHORT.items()
    },
}
# Numbers that positions may end at, or be counted modulo.
_NUMBERS: Final = (*range(2, 17), 20, 24, 32, 48, 64, 100, 128, 256, 512, 1000, 1024, 2048)
# Wrong positions of tokens, with words that follow "the positions are".
Places = Callable[[Tensor, golden.Sizes], Tensor]
_PLACES: Final[tuple[tuple[str, Places], ...]] = (
    ("the index of the head", lambda at, s: _spread(torch.arange(s.num_heads)[:, None], at)),
    (
        "the index of the batch item",
        lambda at, s: _spread(torch.arange(s.batch)[:, None, None], at),
    ),
    ("counted from the last token", lambda at, _s: at.flip(-1)),
    *(
        (
            f"those of the token {abs(n)} {'ahead' if n > 0 else 'behind'}",
            lambda at, _s, n=n: at + n,
        )
        for n in (-3, -2, -1, 1, 2, 3)
    ),
    *(
        (words.format(n - 1 if "end" in words else n), partial(change, number=n))
        for n in _NUMBERS
        for words, change in (
            ("no larger than {}", lambda at, _s, number: at.clamp_max(number)),
            ("counted modulo {}", lambda at, _s, number: at % number),
            ("divided by {} and rounded down", lambda at, _s, number: at // number),
        )
    ),
    *((f"rounded to {n}", lambda at, _s, short=short: short(at)) for n, short in _SHORT.items()),
)


def is_given_tables(inputs: Inputs) -> bool:
    """Whether a call gives the tables by which queries and keys are turned."""
    return inputs.tables is not None


def is_turned(inputs: Inputs) -> bool:
    """Whether queries and keys of a call are rotated by their positions."""
    return inputs.point.rotary != "none"


def _is_stretched(inputs: Inputs) -> bool:
    return is_turned(inputs) and inputs.point.rotary_amplitude != 1.0


def _is_normalised(inputs: Inputs) -> bool:
    return inputs.point.qk_norm != "none"


def turned_edits() -> Iterator[NamedMistake]:
    """Yield wrong rotations, wrong positions, and wrong norms before them."""
    for words, form in _FORMS.items():
        for sides in _BOTH:
            yield _turned(f"so that {words}", sides, partial(_turn_by_form, form=form))
    yield _turned("by other pairs of channels", _BOTH[0], _turn_other_pairs)
    for layout, neighbours in (("c // 2", True), ("c modulo R/2", False)):
        for words, of in (("", "own"), (", in the other pairs", "other")):
            by = partial(_turn_channels, neighbours=neighbours, pairs=of)
            fix = "give both channels of a pair one angle: {}, not {}, for such pairs"
            said = f"with the frequency of index {layout} in channel c{words}"
            yield _turned(said, _BOTH[0], by, fix.format(*_LAID[:: 1 if neighbours else -1]))
    yield _turned("as one wide head, before they are cut into heads", _BOTH[0], _turn_as_one_head)
    for fraction, words in ((0.5, "half of the"), (1.0, "all"), (0.25, "a quarter of the")):
        yield _mistake(f"in {words} channels", edits=_change_fraction(fraction))
    of_head = Edit("frequencies", change=_scale_to_head_size)
    yield _mistake("with exponents that are divided by the head size", edits=(of_head,))
    for words, factor in (("", 1.0), (", backwards", -1.0)):
        edit = Edit("value_heads", change=partial(_turned_value, factor=factor))
        yield _mistake(f"and the values, too{words}", edits=(edit,))
    for (words, places), sides in product(_PLACES, _BOTH):
        named = "" if len(sides) > 1 else f" of the {sides[0]}"
        edits = tuple(_turn_at_places(side, places) for side in sides)
        yield _mistake(f"by positions{named} that are {words}", edits=edits)
    for role in ("query", "key"):
        short = Edit(f"stretched_{role}", golden.Rewired(torch.clone, (f"normalised_{role}",)))
        said = f"with an amplitude that the {role} lacks, as if it were that of the scores"
        fix = "multiply the cosines and sines of queries and of keys by the amplitude"
        yield _mistake(said, fix, edits=(short,), where=_is_stretched)
    yield from _table_mistakes()
    yield from _normalised()


# What a call's tables may be taken for, with words that follow "queries and keys are turned by".
_TABLES: Final[tuple[tuple[str, str, Callable[[Tensor], Tensor]], ...]] = (
    (
        "tables of which the sine has the wrong sign",
        "turn (a, b) into (a cos - b sin, b cos + a sin)",
        torch.conj_physical,
    ),
    (
        "tables whose cosines and sines are exchanged",
        "read the first table as cosines and the second as sines",
        lambda t: torch.complex(t.imag, t.real),
    ),
    (
        "the tables of the first item",
        "turn each item by its own tables: do not cut the axis of items off",
        lambda t: t[..., :1, :, :],
    ),
    (
        "tables whose entries are made as long as one",
        "multiply by the cosines and sines as they are: those of scaled positions are longer",
        lambda t: t / t.abs(),
    ),
    (
        "the first row of the tables, for every token",
        "turn token i by row i of the tables",
        lambda t: t[..., :1, :].expand_as(t),
    ),
    (
        "the rows of the tables from the last to the first",
        "turn token i by row i of the tables",
        lambda t: t.flip(-2),
    ),
)
_BY_ROWS: Final = "turn the tokens of a call by the rows of its tables, which are cut to them"
_READ: Final = "turn queries and keys by the tables that the call gives, not by tables of your own"


def _table_mistakes() -> Iterator[NamedMistake]:
    """Tables of a call that are not read, or are read otherwise."""
    for words, fix, change in _TABLES:
        edit = Edit("rotary_tables", change=change)
        yield _mistake(f"by {words}", fix, edits=(edit,), where=is_given_tables)
    own = [
        Edit(angles, golden.Rewired(partial(golden.angles_at, tables=None), (at, "frequencies")))
        for angles, at in (("query_angles", "query_places"), ("key_angles", "key_places"))
    ]
    for words, lengths in (("", False), (", and as long as the entries of the call's", True)):
        kept = (
            []
            if lengths
            else [
                Edit(f"stretched_{role}", golden.Rewired(torch.clone, (f"normalised_{role}",)))
                for role in ("query", "key")
            ]
        )
        said = f"by positions from zero on, whatever tables the call gives{words}"
        yield _mistake(said, _READ, edits=(*own, *kept), where=is_given_tables)
    both = tuple(_read_rows(side, _rows_of_new) for side in _SIDES)
    said = "by the rows behind the length of the cache, of tables that are cut already"
    yield _mistake(said, _BY_ROWS, edits=both, where=_caches_with_tables)
    yield NamedMistake(
        name="rotation: the cached keys again",
        primary="cache.golden",
        sentence="cached keys, which are turned already, are turned again by the rows of new ones",
        fix=_BEHIND_CACHED,
        where=_caches_with_tables,
        edits=(Edit("joined_key", change=_cache_again),),
    )
    for words, places in _AGAIN:
        yield NamedMistake(
            name=f"rotation: the cached keys again by {words}",
            primary="cache.golden",
            sentence=f"cached keys, which are turned already, are turned again by {words}",
            fix=_BEHIND_CACHED,
            where=_caches_turned_keys,
            edits=(Edit("joined_key", change=partial(_placed_again, places=places)),),
        )


_BEHIND_CACHED: Final = "turn the new keys alone, and put them behind the cached ones"
# Places of cached keys that come turned, from the places of all keys and the number of cached ones.
_AGAIN: Final[tuple[tuple[str, Callable[[Tensor, int], Tensor]], ...]] = (
    ("their places in memory", lambda at, _past: torch.arange(at.shape[-1]).expand_as(at)),
    ("their positions", lambda at, _past: at),
    (
        "the positions of the new ones",
        lambda at, past: at[..., past + torch.arange(at.shape[-1]) % (at.shape[-1] - past)],
    ),
)


def _caches_turned_keys(inputs: Inputs) -> bool:
    return inputs.gets_turned_keys and inputs.tables is None and inputs.past > 0


def _placed_again(
    joined_key: Tensor,
    key_places: Tensor,
    past: int,
    point: golden.Semantics,
    *,
    places: Callable[[Tensor, int], Tensor],
) -> Tensor:
    again = golden.rotate_heads(joined_key, places(key_places, past), point)
    is_cached = (torch.arange(key_places.shape[-1]) < past)[:, None]
    return torch.where(is_cached, again, joined_key)


def _caches_with_tables(inputs: Inputs) -> bool:
    return is_given_tables(inputs) and inputs.past > 0 and not inputs.own_cache


def _rows_of_new(places: Tensor, inputs: Inputs) -> Tensor:
    """The places of the new tokens whose rows are those of places, counted from all tokens."""
    return inputs.past + places % (inputs.geometry.key_length - inputs.past)


def _read_rows(side: str, rows: Callable[[Tensor, Inputs], Tensor]) -> golden.Edit:
    def angles(at: Tensor, frequencies: Tensor, tables: Tensor, inputs: Inputs) -> Tensor | None:
        return golden.angles_at(rows(at, inputs), frequencies, tables)

    places = "query_places" if side == "queries" else "key_places"
    reads = (places, "frequencies", "rotary_tables", "inputs")
    return Edit(_SIDES[side][2], golden.Rewired(angles, reads))


def _cache_again(
    joined_key: Tensor,
    key_places: Tensor,
    rotary_tables: Tensor,
    inputs: Inputs,
    point: golden.Semantics,
) -> Tensor:
    rows = _rows_of_new(key_places, inputs)
    again = golden.rotate_heads(joined_key, rows, point, rotary_tables)
    is_cached = (key_places < inputs.past).unsqueeze(-1)
    return torch.where(is_cached, again, joined_key)


_LAID: Final = ("torch.cat([frequencies, frequencies], -1)", "frequencies.repeat_interleave(2, -1)")
_FIX: Final = "turn queries and keys by position * base ** (-2 i / R), in the declared pairs"


def _mistake(words: str, fix: str = _FIX, **ways: object) -> NamedMistake:
    return NamedMistake(
        name=f"rotation: {words}",
        primary=_PRIMARY,
        sentence=f"queries and keys are turned {words}",
        fix=fix,
        **{"where": is_turned, **ways},  # type: ignore[arg-type]
    )


def _turned(
    words: str, sides: tuple[str, ...], turn: Callable[..., Tensor], fix: str = _FIX
) -> NamedMistake:
    names = [_SIDES[side] for side in sides]
    edits = tuple(Edit(n, golden.Rewired(turn, (heads, at, "point"))) for n, heads, at in names)
    one = _mistake(words, fix, edits=edits)
    if len(sides) > 1:
        return one
    said = f"the {sides[0]} alone are turned {words}"
    return NamedMistake(
        name=f"rotation: of the {sides[0]} {words}",
        primary=_PRIMARY,
        sentence=said,
        fix=fix,
        where=is_turned,
        edits=edits,
    )


def _turn_by_form(heads: Tensor, angles: Tensor, point: golden.Semantics, *, form: Form) -> Tensor:
    first, second = golden.rotary_pairs(heads.shape[-1], point)
    turned = heads.clone()
    made = form(heads[..., first], heads[..., second], angles.cos(), angles.sin())
    turned[..., first], turned[..., second] = made
    return turned


def _other_pairs(point: golden.Semantics) -> golden.Semantics:
    return point.replace(rotary="halves" if point.rotary != "halves" else "interleaved")


def _turn_other_pairs(heads: Tensor, angles: Tensor, point: golden.Semantics) -> Tensor:
    return golden.turn_heads(heads, angles, _other_pairs(point))


def _turn_channels(
    heads: Tensor, angles: Tensor, point: golden.Semantics, *, neighbours: bool, pairs: str
) -> Tensor:
    """Rotate each channel by an angle from a table of the opposite layout."""
    point = point if pairs == "own" else _other_pairs(point)
    every = angles.repeat_interleave(2, dim=-1) if neighbours else torch.cat([angles] * 2, dim=-1)
    first, second = golden.rotary_pairs(heads.shape[-1], point)
    a, b, s, t = heads[..., first], heads[..., second], every[..., first], every[..., second]
    turned = heads.clone()
    turned[..., first] = a * s.cos() - b * s.sin()
    turned[..., second] = b * t.cos() + a * t.sin()
    return turned


def _turn_as_one_head(heads: Tensor, angles: Tensor, point: golden.Semantics) -> Tensor:
    wide = heads.transpose(-3, -2).flatten(-2)
    frequencies = golden.rotary_frequencies(wide.shape[-1], point)
    # The first pair turns by whole positions.
    turned = golden.turn_heads(wide, angles[..., :1] * frequencies, point)
    cut: Tensor = turned.unflatten(-1, (heads.shape[-3], -1)).transpose(-3, -2)
    return cut


def _change_fraction(fraction: float) -> tuple[golden.Edit, ...]:
    def frequencies(sizes: golden.Sizes, point: golden.Semantics) -> Tensor:
        return golden.rotary_frequencies(sizes.head_size, point.replace(rotary_fraction=fraction))

    def turn(heads: Tensor, angles: Tensor, point: golden.Semantics) -> Tensor:
        return golden.turn_heads(heads, angles, point.replace(rotary_fraction=fraction))

    turns = (Edit(n, golden.Rewired(turn, (h, at, "point"))) for n, h, at in _SIDES.values())
    return Edit("frequencies", frequencies), *turns


def _scale_to_head_size(frequencies: Tensor, sizes: golden.Sizes) -> Tensor:
    return frequencies ** (2 * len(frequencies) / max(sizes.head_size, 1))


def _turned_value(
    value: Tensor, key_angles: Tensor, point: golden.Semantics, *, factor: float
) -> Tensor:
    return golden.turn_heads(value, factor * key_angles, point)


def _spread(index: Tensor, at: Tensor) -> Tensor:
    return index.double().expand(*index.shape[:-1], at.shape[-1])


def _turn_at_places(side: str, places: Places) -> golden.Edit:
    of_queries = side == "queries"
    at = "query_places" if of_queries else "key_places"
    reads = (at, "frequencies", "rotary_tables", "sizes", "inputs")
    change = partial(_angles_at, places, of_queries=of_queries)
    return Edit(_SIDES[side][2], golden.Rewired(change, reads))


def _angles_at(
    places: Places,
    at: Tensor,
    frequencies: Tensor,
    tables: Tensor | None,
    sizes: golden.Sizes,
    inputs: Inputs,
    *,
    of_queries: bool,
) -> Tensor | None:
    """Angles at other places; the rows of tables are counted, and end, within those of the call."""
    if not of_queries:  # what is shared has no other heads
        sizes = sizes._replace(num_heads=sizes.num_kv_heads)
    first = 0 if tables is None else inputs.past
    other = places(at.double() - first, sizes)
    if tables is not None:
        other = first + other % max(inputs.geometry.key_length - first, 1)
    return golden.angles_at(other, frequencies, tables)


# Norms of the heads as they are given, along an axis.
_NORMS: Final[tuple[tuple[str, Callable[[Tensor, int], Tensor]], ...]] = (
    ("normalised to mean 0 and variance 1 over the {}s", standardised),
    ("divided by the root of their mean square over the {}s", over_root_mean_square),
    ("divided by their length over the {}s", lambda t, axis: normalize(t, dim=axis)),
    (
        "divided by their mean square over the {}s",
        lambda t, axis: t / t.square().mean(axis, keepdim=True),
    ),
)


def _normalised() -> Iterator[NamedMistake]:
    for sides in _BOTH:
        names = [_NORMALISED[side] for side in sides]
        every: list[tuple[str, Callable[[Tensor], Tensor]]] = [("left as they are", torch.clone)]
        for noun, along in axes_of("BHLD".replace("L", "K")):
            every += [
                (insert_place(words, noun.replace("key", "token")), along(n)) for words, n in _NORMS
            ]
        for words, norm in every:
            given = [Edit(n, golden.Rewired(norm, (f"given_{n[11:]}",))) for n in names]
            yield NamedMistake(
                name=f"norm: {' and '.join(sides)} {words}",
                primary="qk-norm.golden",
                sentence=f"{' and '.join(sides)} are {words}",
                fix="normalise each head of each query and key by the declared rule, before it is "
                "turned",
                where=_is_normalised,
                edits=tuple(given),
            )
