"""Values for parameters besides tokens: masks that hide nothing, position tables, switches.

A value is a printable expression of ``{query}`` and ``{key}``, the harness' tokens.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ..base.parameter_names import option_of, words_of

Fills = tuple[tuple[str, str], ...]

# Values tried for options that a plain call does not use.
_NEUTRAL: Final = {
    "cache": ("None", "0"),
    "dropout": ("0.0", "None"),
    "causal": ("False",),
    "weights": ("False",),
    "scale": ("None",),
    "softcap": ("None",),
    "window": ("None",),
}
_MOST: Final = 600
_BATCH: Final = "{query}.shape[0]"
_LENGTH: Final = "{query}.shape[-2]"
_KEYS: Final = "{key}.shape[-2]"
_MASK_SHAPES: Final = (
    f"{_BATCH}, 1, {_LENGTH}, {_KEYS}",
    f"{_LENGTH}, {_KEYS}",
    f"{_BATCH}, {_LENGTH}, {_KEYS}",
    f"{_BATCH}, {_KEYS}",
    f"{_BATCH}, 1, 1, {_KEYS}",
    f"1, {_LENGTH}, {_KEYS}",
    f"{_BATCH}, {_KEYS}, 1",
)
_MASK_VALUES: Final = (
    ("new_ones", ", dtype=torch.bool"),
    ("new_zeros", ", dtype=torch.bool"),
    ("new_ones", ""),
    ("new_zeros", ""),
    ("new_ones", ", dtype=torch.int64"),
)
_PLACES: Final = f"torch.arange({_LENGTH}, device={{query}}.device)"
_IDS: Final = (
    f"{_PLACES}[None]",
    _PLACES,
    f"{_PLACES}.expand({_BATCH}, -1)",
    "0",
)
# As many keys as there are, for each item.
_ALL_KEYS: Final = f"{{query}}.new_full(({_BATCH},), {_KEYS}, dtype=torch.int64)"
_SAYS_LENGTHS: Final = frozenset("len lens length lengths seqlens".split())
# Positions that may differ by item, and scattered positions whose distances do.
BY_ITEM: Final = (_IDS[0], _IDS[2])
SCATTERED: Final = f"({_PLACES}.square() * torch.arange(1, {_BATCH} + 1)[:, None])"
# The angles of rotary positions, [L, D / 2], with the usual base; a call may give others.
_ANGLES: Final = (
    f"torch.outer(torch.arange({_LENGTH}).double(), "
    "10000.0 ** (-torch.arange(0, {size}, 2).double() / {size}))"
)
_ANGLES_OF_SIZE: Final = re.compile(re.escape(_ANGLES).replace(r"\{size\}", r"[^)]*?"))
_COUNTED: Final = f"torch.arange({_LENGTH}).double()"
_SQUARES: Final = f"{_COUNTED}.square()"
_TABLES: Final = frozenset("embedding embeddings emb embed encoding encodings cos sin pe".split())
# Rotary positions may turn a half or a quarter of a head's channels.
_PARTS: Final = (2, 4)
_WIDTHS: Final = ("", ".repeat(1, 2)", ".repeat_interleave(2, 1)")
_AXES: Final = ("", "[None]", f".expand({_BATCH}, -1, -1)", "[None, None]", "[:, None]")
_ZEROS: Final = "torch.zeros_like({query})"
# Sides of a picture made of the tokens: a column, or a square.
_SIDE: Final = f"round({_LENGTH} ** 0.5)"
_HEIGHTS: Final = (_LENGTH, _SIDE)
_WIDTHS_OF_PICTURES: Final = ("1", _SIDE)
_BOTH_SIDES: Final = tuple(
    f"({one}, {other})" for one, other in zip(_HEIGHTS, _WIDTHS_OF_PICTURES, strict=True)
)
_SIDES: Final = {
    **dict.fromkeys(("h", "height"), _HEIGHTS),
    **dict.fromkeys(("w", "width"), _WIDTHS_OF_PICTURES),
    **dict.fromkeys(("size", "hw", "resolution"), _BOTH_SIDES),
}


def masks_that_hide_nothing(name: str = "") -> Iterator[str]:
    """None, then expressions of masks that may hide no key: the answers show which hide none.

    Numbers of keys come first for a ``name`` that says lengths.
    """
    yield from ("None", *([_ALL_KEYS] if _SAYS_LENGTHS & {*words_of(name)} else []))
    for shape, (maker, dtype) in itertools.product(_MASK_SHAPES, _MASK_VALUES):
        yield f"{{query}}.{maker}({shape}{dtype})"
    yield _ALL_KEYS


def holds_masks(fills: Fills) -> bool:
    """Whether a value is a mask made for the call."""
    masks = {*masks_that_hide_nothing()} - {"None"}
    return any(source in masks for _, source in fills)


def sides_for(name: str) -> tuple[str, ...]:
    """Expressions for the height, the width or both of a picture, as a name asks; else ()."""
    lowered, words = name.lower(), words_of(name)
    return _SIDES.get(lowered) or next((_SIDES[w] for w in words if w in _SIDES), ())


def positions_for(name: str, head_sizes: Iterable[int | str]) -> list[str]:
    """Expressions of positions and position tables for a parameter's name, the likeliest first.

    The lists for cosines and for sines correspond entry by entry.
    """
    words, whole = set(words_of(name)), tuple(head_sizes)
    parts = (one // part for part in _PARTS for one in whole if isinstance(one, int))
    head_sizes = tuple(dict.fromkeys((*whole, *(one for one in parts if one and one % 2 == 0))))
    tables = [
        f"{_sized(size)}{width}{axes}" for size in head_sizes for axes in _AXES for width in _WIDTHS
    ]
    turned = ("cos", "sin")
    for word in turned:
        if word in words and not words & (set(turned) - {word}):
            return [f"{table}.{word}().to({{query}})" for table in tables]
    pairs = [f"({table}.cos().to({{query}}), {table}.sin().to({{query}}))" for table in tables]
    pairs += [
        f"torch.stack([{table}.cos(), {table}.sin()]).to({{query}})"
        for table in tables
        if _BATCH not in table
    ]
    angles = [_sized(size) for size in head_sizes]
    single = ".to(torch.promote_types({query}.dtype, torch.float32))"
    made = [f"torch.complex({one}.cos(){single}, {one}.sin(){single})" for one in angles]
    made += [f"torch.stack([{one}.cos(), {one}.sin()], -1).to({{query}})" for one in angles]
    turns = [
        f"torch.stack([{one}.cos(), -{one}.sin(), {one}.sin(), {one}.cos()], -1)"
        f".unflatten(-1, (2, 2)){axes}.to({{query}})"
        for one in angles
        for axes in ("[None, None]", "", "[None]")
    ]
    made += [f"{table}.to({{query}})" for table in tables]
    if words & {"freqs", "freq", "cis", "rope", "rotary", "rot"}:
        return [*made, *pairs, *turns, *_IDS]
    if words & _TABLES:
        return [*pairs, *turns, _ZEROS, *made, *_IDS]
    ids = _IDS[::-1] if words & {"start", "offset", "step"} else _IDS
    return [*ids, *pairs, *made, _ZEROS]


def with_pairs(fills: Fills) -> Fills:
    """Fillings with tables of angles a, a, b, b in place of a, b, a, b."""
    return tuple((name, source.replace(_WIDTHS[1], _WIDTHS[2])) for name, source in fills)


def by_angles(source: str, angles: str) -> str:
    """A filling with its angles of positions replaced; unchanged without such angles."""
    return _ANGLES_OF_SIZE.sub(lambda _found: angles, source)


def at_squares(source: str) -> str:
    """A filling with the angles of positions 0, 1, 4, 9 and so on; unchanged without angles."""
    return _ANGLES_OF_SIZE.sub(lambda found: found[0].replace(_COUNTED, _SQUARES), source)


def moved(fills: Fills) -> Fills:
    """Fillings with all positions of angles moved by one number, which no rotation shows."""
    at = f"({_COUNTED} + 3)"
    return tuple(
        (name, _ANGLES_OF_SIZE.sub(lambda found: found[0].replace(_COUNTED, at), source))
        for name, source in fills
    )


def _sized(size: int | str) -> str:
    return _ANGLES.replace("{size}", str(size))


def fillings(
    wanted: Iterable[inspect.Parameter], head_sizes: Sequence[int], *, guessed: Iterable[str] = ()
) -> Iterator[Fills]:
    """The ways to fill parameters, the likeliest first.

    Parameters of one kind are filled alike. ``guessed`` parameters, thought to be no tokens, may
    get any value.
    """
    groups: dict[str, list[tuple[str, list[str]]]] = {}
    for parameter in wanted:
        option = option_of(parameter)
        if parameter.name in guessed and (sides := sides_for(parameter.name)):
            kind, choices = "sides", [*sides]
        elif parameter.name in guessed:
            kind = f"any {parameter.name}"
            choices = [*list(masks_that_hide_nothing())[1:], *_IDS]
            choices += positions_for(parameter.name, head_sizes)
        elif option == "mask":
            choices = list(masks_that_hide_nothing(parameter.name))
            kind = "mask" if choices[1] != _ALL_KEYS else parameter.name
        elif option == "positions":
            choices = positions_for(parameter.name, head_sizes)
            kind = "tables" if choices[0].endswith("to({query})") else parameter.name
        else:
            kind, choices = parameter.name, list(_NEUTRAL.get(option, ("None",)))
        groups.setdefault(kind, []).append((parameter.name, choices))
    ways = [
        [
            tuple((name, choices[index % len(choices)]) for name, choices in group)
            for index in range(max(len(choices) for _, choices in group))
        ]
        for group in groups.values()
    ]
    for chosen in itertools.islice(itertools.product(*ways), _MOST):
        yield tuple(itertools.chain.from_iterable(chosen))


def takes_items(fills: Fills) -> bool:
    """Whether a value has an axis of items, which tokens without a batch lack."""
    return any(_BATCH in source for _, source in fills)


def filled(fills: Fills, inputs: Sequence[Tensor]) -> dict[str, Any]:
    """Evaluate fillings on tokens: values by parameter name."""
    if not fills:
        return {}
    places = {"torch": torch, "query": inputs[0], "key": inputs[min(1, len(inputs) - 1)]}
    return {
        name: eval(source.format(query="query", key="key"), places)  # noqa: S307 (text of this module)
        for name, source in fills
    }


def shown_fill(source: str) -> str:
    """A filling as Python code, in the names of the tokens."""
    return source.format(query="query", key="key")
