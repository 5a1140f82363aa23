"""Structured masks with misread arguments: operators on arguments of a call."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import Tensor

from .._golden import golden
from ..declare.declaration import GRID_FORMS, PADDED_QUERIES
from ..problems.arrangements import frame
from ..problems.inputs import Inputs
from ..problems.structured_items import changed_items
from ..problems.structured_masks import STRUCTURED_MASKS, Arguments, Structure, read_grid
from .mistakes import NamedMistake

_Read = Callable[[Arguments, Structure], Tensor]
_PRIMARY: Final = "mask.golden"
_OF_PADDING: Final = "mask.padded-queries"


def _change_argument(form: str, name: str, change: Callable[[Any], Any]) -> _Read:
    return lambda given, structure: STRUCTURED_MASKS[form].read(
        {**given, name: change(given[name])}, structure
    )


def _aligned_otherwise(form: str) -> _Read:
    def read(given: Arguments, structure: Structure) -> Tensor:
        other = "top-left" if structure.alignment == "bottom-right" else "bottom-right"
        turned = dataclasses.replace(structure, alignment=other)
        return STRUCTURED_MASKS[form].read(given, turned)

    return read


def _segments_up_to(given: Arguments, _structure: Structure) -> Tensor:
    queries, keys = given["query_segments"], given["key_segments"]
    table: Tensor = queries[:, :, None] >= keys[:, None, :]
    return table.unsqueeze(1)


def _prefix_alone(given: Arguments, structure: Structure) -> Tensor:
    keys = torch.arange(structure.geometry.key_length)
    inside: Tensor = keys < given["prefix_lengths"][:, None, None, None]
    return inside.expand(-1, -1, structure.geometry.query_length, -1)


def _causality_alone(given: Arguments, structure: Structure) -> Tensor:
    return (structure.ahead <= 0).expand(len(given["prefix_lengths"]), 1, -1, -1)


def _chunk_as_window(*, behind: bool) -> _Read:
    def read(given: Arguments, structure: Structure) -> Tensor:
        ahead = structure.ahead
        near: Tensor = ahead.abs() < given["chunk"]
        return (near & (ahead <= 0) if behind else near)[None, None]

    return read


def _change_tree(family: Callable[[Tensor, Tensor], Tensor], *, cached: bool = True) -> _Read:
    def read(given: Arguments, structure: Structure) -> Tensor:
        table = STRUCTURED_MASKS["tree"].read(given, structure).clone()
        past = structure.geometry.key_length - structure.geometry.query_length
        table[:, 0, :, past:] = family(table[:, 0, :, past:], given["parents"])
        table[..., :past] &= cached
        return table

    return read


def _parent_alone(family: Tensor, parents: Tensor) -> Tensor:
    places = torch.arange(family.shape[-1])
    own = torch.eye(family.shape[-1], dtype=torch.bool)
    return own | (places == parents[:, :, None])


def _ancestors_at_keys(given: Arguments, structure: Structure) -> Tensor:
    """Take numbers of new tokens for numbers of keys, the first of which are cached."""
    table = STRUCTURED_MASKS["tree"].read(given, structure)
    past = structure.geometry.key_length - structure.geometry.query_length
    return table.roll(-past, dims=-1)


def _count_from_end(indices: Tensor, structure: Structure) -> Tensor:
    return torch.where(indices < 0, indices + structure.geometry.key_length, indices)


def _indices_from_the_end(given: Arguments, structure: Structure) -> Tensor:
    indices = _count_from_end(given["key_indices"], structure)
    return STRUCTURED_MASKS["indices"].read({"key_indices": indices}, structure)


def _blocks_exchanged(given: Arguments, structure: Structure) -> Tensor:
    blocks, shape = given["block_mask"], given["block_mask"].shape
    turned = blocks.transpose(-1, -2).reshape(shape)
    return STRUCTURED_MASKS["blocks"].read({"block_mask": turned}, structure)


def _blocks_of_exchanged_sizes(given: Arguments, structure: Structure) -> Tensor:
    """Exchange the two sizes of a block; the rest of the table is hidden."""
    sizes, (tall, wide) = structure.geometry, structure.block_size
    table: Tensor = given["block_mask"].repeat_interleave(wide, dim=2)
    table = table.repeat_interleave(tall, dim=3)[..., : sizes.query_length, : sizes.key_length]
    lacking = (sizes.key_length - table.shape[-1], sizes.query_length - table.shape[-2])
    return torch.nn.functional.pad(table, (0, lacking[0], 0, lacking[1]))


def _lengths_of_keys(given: Arguments, structure: Structure) -> Tensor:
    inside: Tensor = torch.arange(structure.geometry.key_length) < given["query_lengths"][:, None]
    return inside[:, None, None, :]


def _wrapped_windows(given: Arguments, structure: Structure) -> Tensor:
    """Roll the cells without hiding from each other those of opposite edges."""

    def of_axis(size: int, window: int, shift: int) -> Tensor:
        places = (torch.arange(size) - shift) % max(size, 1)
        number = places.div(max(window, 1), rounding_mode="floor")
        return number[:, None] == number

    return read_grid(of_axis)(given, structure)


def _neighbors(near: Callable[[Tensor, int, int], Tensor]) -> _Read:
    """Neighbors by how far ahead a place lies of another, the window and the size of the axis."""

    def of_axis(size: int, window: int, _shift: int) -> Tensor:
        place = torch.arange(size)
        return near(place - place[:, None], window, size)

    return read_grid(of_axis)


def _shifted(change: Callable[[Any], Any]) -> _Read:
    return _change_argument("shifted_grid", "shift", change)


def _along_memory(form: str) -> _Read:
    def read(given: Arguments, structure: Structure) -> Tensor:
        tall, wide = given["window"]
        line = {"grid": (1, structure.geometry.key_length), "window": (1, tall * wide)}
        return STRUCTURED_MASKS[form].read(line, structure)

    return read


def _pairs_exchanged(form: str, *names: str) -> _Read:
    def read(given: Arguments, structure: Structure) -> Tensor:
        turned = {name: given[name][::-1] for name in names or given}
        return STRUCTURED_MASKS[form].read({**given, **turned}, structure)

    return read


# The form, the words for the wrong mask, the fix, and the wrong reading of arguments.
_MISREADINGS: Final[tuple[tuple[str, str, str, _Read], ...]] = (
    (
        "segments",
        "made with segments of lower numbers, too",
        "compare the numbers of segments with ==",
        _segments_up_to,
    ),
    *(
        ("prefix", f"made with a prefix one key {words}", "keep the keys before the length", read)
        for words, read in (
            ("longer", _change_argument("prefix", "prefix_lengths", lambda lengths: lengths + 1)),
            ("shorter", _change_argument("prefix", "prefix_lengths", lambda lengths: lengths - 1)),
        )
    ),
    (
        "prefix",
        "the prefix alone: keys behind it are hidden from all",
        "join the prefix and the causal table with |",
        _prefix_alone,
    ),
    (
        "prefix",
        "the causal table alone: the prefix shows no key that is ahead",
        "join the prefix and the causal table with |",
        _causality_alone,
    ),
    *(
        (
            form,
            "made with the places of the queries counted from the other end",
            "count queries from the first or the last key, as declared",
            _aligned_otherwise(form),
        )
        for form in ("prefix", "chunks")
    ),
    *(
        ("chunks", f"made with chunks one key {words}", "divide by the size as it is", read)
        for words, read in (
            ("longer", _change_argument("chunks", "chunk", lambda size: size + 1)),
            ("shorter", _change_argument("chunks", "chunk", lambda size: max(size - 1, 1))),
        )
    ),
    *(
        ("chunks", f"a window as long as a chunk, {words}", "compare the numbers of chunks", read)
        for words, read in (
            ("on both sides", _chunk_as_window(behind=False)),
            ("up to the query", _chunk_as_window(behind=True)),
        )
    ),
    (
        "tree",
        "made with the parent alone: further ancestors are hidden",
        "follow the parents up to the root",
        _change_tree(_parent_alone),
    ),
    (
        "tree",
        "made without the cache, which every new token attends",
        "show the cached keys to each new token",
        _change_tree(lambda family, _parents: family, cached=False),
    ),
    (
        "tree",
        "made without the token itself",
        "show each new token its own key",
        _change_tree(lambda family, _parents: family.tril(-1)),
    ),
    (
        "tree",
        "made with the numbers of new tokens taken for those of keys",
        "add the length of the cache to the numbers of new tokens",
        _ancestors_at_keys,
    ),
    (
        "indices",
        "made with -1 read as the last key",
        "leave out negative indices before keys are gathered",
        _indices_from_the_end,
    ),
    (
        "blocks",
        "made with blocks of keys and queries exchanged",
        "index blocks by the query first",
        _blocks_exchanged,
    ),
    (
        "blocks",
        "made with the two sizes of a block exchanged",
        "repeat each block over its queries and its keys as declared",
        _blocks_of_exchanged_sizes,
    ),
    *(
        (form, f"made with {words} exchanged", "rows come first", _pairs_exchanged(form, *names))
        for form in GRID_FORMS
        for words, names in (
            ("rows and columns", ()),
            ("the rows and the columns of the grid alone", ("grid",)),
            ("the two sizes of the window", ("window",)),
        )
    ),
    (
        "shifted_grid",
        "shifted by its two amounts exchanged",
        "rows come first",
        _pairs_exchanged("shifted_grid", "shift"),
    ),
    *(
        ("shifted_grid", words, "number windows from the shift on", read)
        for words, read in (
            ("made without the shift", _shifted(lambda _shift: (0, 0))),
            ("shifted the other way", _shifted(lambda shift: (-shift[0], -shift[1]))),
            ("shifted in rows alone", _shifted(lambda shift: (shift[0], 0))),
            ("shifted in columns alone", _shifted(lambda shift: (0, shift[1]))),
        )
    ),
    (
        "shifted_grid",
        "made without hiding from each other the cells that were rolled to the other edge",
        "hide in each window the cells of another edge",
        _wrapped_windows,
    ),
    (
        "neighborhood",
        "made with windows that are cut off at the edges",
        "move windows inwards at the edges of the grid",
        _neighbors(lambda ahead, window, _size: ahead.abs() <= window // 2),
    ),
    (
        "neighborhood",
        "made with windows that go on at the opposite edge",
        "move windows inwards at the edges of the grid",
        _neighbors(lambda ahead, window, size: (ahead + window // 2) % size < window),
    ),
    *(
        (form, "made of as many tokens in memory", "go by rows and columns", _along_memory(form))
        for form in GRID_FORMS
    ),
    (
        PADDED_QUERIES,
        "made with the lengths taken for those of keys",
        "hide no key: the rows behind the lengths are padding",
        _lengths_of_keys,
    ),
    (
        PADDED_QUERIES,
        "made with lengths one query shorter",
        "answer the queries before the length",
        _change_argument(PADDED_QUERIES, "query_lengths", lambda lengths: lengths - 1),
    ),
)


def misread_structures() -> Iterator[NamedMistake]:
    """Yield misread arguments of each form, as mistakes of the resulting table."""
    for form, words, fix, read in _MISREADINGS:
        yield NamedMistake(
            name=f"{form}: {words}",
            primary=_OF_PADDING if form == PADDED_QUERIES else _PRIMARY,
            sentence=f"the mask by {form} is {words}",
            fix=fix,
            edits=(golden.Edit("keep", change=_table(form, read)),),
            where=_has(form),
            needs="mask",
        )


def _has(form: str) -> Callable[[Inputs], bool]:
    return lambda inputs: inputs.mask_form == form


def _table(form: str, read: _Read) -> Callable[..., Tensor]:
    def change(keep: Tensor, inputs: Inputs) -> Tensor:
        structure = frame(inputs)
        if inputs.present is None:
            return misread(keep, structure)
        whole = keep.expand(inputs.geometry.batch, *keep.shape[1:])
        return changed_items(whole, structure, inputs.present, misread)

    def misread(keep: Tensor, structure: Structure) -> Tensor:
        given = STRUCTURED_MASKS[form].arguments(keep, structure)
        return read(given, structure).expand(keep.shape)

    return change
