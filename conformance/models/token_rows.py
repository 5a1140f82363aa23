"""Tell whether every head of an attention in a model, values included, belongs to one token.

Only steps that move numbers lie between a projection and the heads: each number of a head is
located in the projection, by its bits. Repeated numbers say nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from ..tolerance.model import SAME_READ
from .recording import RESHAPES, ModuleRecording, Value
from .torch_edges import CASTS, PARTED
from .torch_sites import PARTS, TorchSite

_MOVES: Final = (
    CASTS
    | RESHAPES
    | frozenset("transpose swapaxes permute mT T chunk split unbind getitem narrow squeeze".split())
    | frozenset("unsqueeze movedim select tensor_split".split())
)
# What to do, as the mistakes of those names in the catalogue say.
_SPLIT: Final = "view as (batch, length, heads, head size), then transpose(1, 2)"
_MERGED: Final = "transpose(1, 2) before the reshape to (batch, length, width)"


@dataclass(frozen=True, kw_only=True)
class MovedHeads:
    """Heads, one letter an axis, and the tensors on their way from or to a projection.

    way: the nearest first; each is made of the one before it, or makes it, by moves alone.
    where: the places of the moves in brackets, "" where they are not known.
    """

    heads: Tensor
    letters: str
    way: Sequence[Tensor]
    where: str = ""


def mixed_part(recording: ModuleRecording, site: TorchSite) -> str:
    """The part of a recorded attention whose heads mix tokens, in words; "" where none does."""
    values = recording.values
    split = {}
    for part in PARTS:
        heads = values[site.edges[part].number]
        above = [heads, *_before(recording, heads)]
        split[part] = MovedHeads(
            heads=heads.tensor,
            letters=site.edges[part].letters,
            way=[each.tensor for each in above],
            where=_lines(above[:-1]),
        )
    answer = values[site.output_value]
    below = [answer, *_behind(recording, answer)]
    return mixed_heads(
        split,
        MovedHeads(
            heads=answer.tensor,
            letters=site.output_letters,
            way=[each.tensor for each in below],
            where=_lines(below[:0:-1]),
        ),
    )


def mixed_heads(split: Mapping[str, MovedHeads], merged: MovedHeads) -> str:
    """What of split query, key and value, or of merged heads, mixes tokens, in words; else ""."""
    for part, own in split.items():
        source = own.way[-1]
        places = _places(own.heads, source)
        if {"L", "D"} <= set(own.letters) and _mixes_rows(places, source, own.letters):
            return (
                f"the heads of the {part} are split so that tokens are mixed{own.where}: {_SPLIT}"
            )
    if "L" not in merged.letters:
        return ""
    owners = [_owner(each, merged) for each in merged.way]
    # What the model does with rows of merged heads is its own affair.
    if _mixes_merged(owners[-1], merged) and not any(_has_rows(each, merged) for each in owners):
        return f"its heads are merged so that tokens are mixed{merged.where}: {_MERGED}"
    return ""


def turns_values(recording: ModuleRecording, site: TorchSite) -> bool:
    """Tell whether values of equal tokens differ between places by a rotation alone.

    In the recording all tokens of an item are equal. Rotations keep the inner products of values at
    one place, unlike other positions. False if the answer may be rotated back.
    """
    edge, values = site.edges["value"], recording.values
    at = edge.letters.index("L")
    rows = values[edge.number].tensor.detach().double().movedim(at, 0)
    rows = rows.reshape(len(rows), -1, rows.shape[-1] // (edge.heads if "M" in edge.letters else 1))
    products = rows @ rows.mT
    if _are_same(rows) or not _are_same(products):
        return False
    answer = values[site.output_value].tensor.detach()
    size = site.value_size
    alike = (one.tensor.detach() for one in values if one.tensor.numel() == answer.numel())
    return not any(
        one.is_floating_point()
        and one.shape[-1] % size == 0
        and _are_same(torch.stack([_lengths(one, size), _lengths(answer, size)]))
        and not _are_same(torch.stack([_lengths(one, 1), _lengths(answer, 1)]))
        for one in alike
    )


def _lengths(tensor: Tensor, size: int) -> Tensor:
    lengths: Tensor = tensor.reshape(-1, size).double().norm(dim=-1).sort().values
    return lengths


def _are_same(parts: Tensor) -> bool:
    """Tell whether all parts along the first axis are equal up to rounding."""
    return bool(((parts - parts[:1]).abs() <= SAME_READ * parts.abs().max()).all())


def _before(recording: ModuleRecording, value: Value) -> Iterator[Value]:
    """Yield the values that a value is made of by calls that only move numbers, nearest first."""
    while value.made_by is not None and value.made_by.name in _MOVES:
        reads = value.made_by.reads
        if len(reads) != 1:
            break
        value = recording.values[reads[0]]
        yield value


def _behind(recording: ModuleRecording, value: Value) -> Iterator[Value]:
    """Yield the values that calls only moving numbers make of a value, in order."""
    for call in recording.calls:
        moves = call.name in _MOVES and len(call.results) == 1
        if call.reads == [value.number] and moves:
            value = recording.values[call.results[0]]
            yield value


def _lines(moved: Sequence[Value]) -> str:
    """The user's lines with the reshapes that make some values, the last first; "" for none."""
    lines = [each.made_by.line for each in reversed(moved) if each.made_by is not None]
    lines = list(dict.fromkeys(filter(None, lines)))
    return f" ({', '.join(lines)})" if lines else ""


def _places(moved: Tensor, source: Tensor) -> Tensor:
    """Return the memory index of each number in a source; -1 where ambiguous or missing."""
    if moved.dtype != source.dtype or not moved.is_floating_point():
        return torch.full(moved.shape, -1)
    numbers, order = source.detach().flatten().double().sort()
    wanted = moved.detach().double()
    found = torch.searchsorted(numbers, wanted.contiguous()).clamp(max=len(numbers) - 1)
    after = (found + 1).clamp(max=len(numbers) - 1)
    single = (numbers[found] == wanted) & ((numbers[after] != wanted) | (after == found))
    return torch.where(single, order[found], -1)


def _mixes_rows(places: Tensor, source: Tensor, letters: str) -> bool:
    """Tell whether a head's row mixes tokens, or a token has two rows."""
    rows = places.movedim((letters.index("L"), letters.index("D")), (-2, -1)).flatten(0, -3)
    if rows.shape[-2] == 1 or bool((rows < 0).all()) or source.dim() < 2:  # noqa: PLR2004 (tokens)
        return False
    # Channels may lie along several axes, such as pairs that positions turn.
    runs = itertools.combinations(range(source.dim() + 1), 2)
    return all(_mixes(rows, _tokens(rows, source.shape, *run)) for run in runs)


def _tokens(places: Tensor, shape: Sequence[int], first: int, end: int) -> Tensor:
    """Return the indices in a source, ignoring the axes of channels."""
    below, count = math.prod(shape[end:]), math.prod(shape[first:end])
    return places // (below * count) * below + places % below


def _mixes(rows: Tensor, tokens: Tensor) -> bool:
    known = rows >= 0
    least = torch.where(known, tokens, torch.iinfo(tokens.dtype).max).amin(-1)
    most = torch.where(known, tokens, -1).amax(-1)
    seen = known.any(-1)
    if bool((seen & (least != most)).any()):
        return True
    # A row without a known number differs from all others.
    unique = torch.where(seen, most, -1 - torch.arange(seen.shape[-1]))
    ordered = unique.sort(dim=-1).values
    return bool((ordered[..., 1:] == ordered[..., :-1]).any())


def _owner(moved: Tensor, merged: MovedHeads) -> Tensor:
    """Return by place the token that a number is of, -1 where it is not known."""
    heads, places = merged.heads, _places(moved, merged.heads)
    numbers = torch.arange(heads.numel()).reshape(heads.shape)
    token = torch.zeros_like(numbers)
    for axis in _axes_of_tokens(merged):
        place = torch.arange(heads.shape[axis]).reshape([-1] + [1] * (heads.dim() - axis - 1))
        token = token * heads.shape[axis] + place
    of_place = token.expand(heads.shape).flatten()
    return torch.where(places < 0, -1, of_place[places.clamp(min=0)])


def _axes_of_tokens(merged: MovedHeads) -> list[int]:
    return [axis for axis, letter in enumerate(merged.letters) if letter in f"B{PARTED}L"]


def _width(merged: MovedHeads) -> int:
    """Return the number of channels of all heads of a token."""
    shape = merged.heads.shape
    return merged.heads.numel() // math.prod(shape[axis] for axis in _axes_of_tokens(merged))


def _has_rows(owner: Tensor, merged: MovedHeads) -> bool:
    """Tell whether an axis holds all heads of one token."""
    width = _width(merged)
    wide = (axis for axis, size in enumerate(owner.shape) if size == width)
    return "B" in merged.letters and any(not _differ(owner, axis) for axis in wide)


def _mixes_merged(owner: Tensor, merged: MovedHeads) -> bool:
    """Tell whether rows of merged heads hold numbers of several tokens, whatever the axes."""
    heads, letters = merged.heads, merged.letters
    if bool((owner < 0).all()) or heads.shape[letters.index("L")] == 1:
        return False
    of_one = [size for axis, size in enumerate(owner.shape) if not _differ(owner, axis)]
    if owner.numel() != heads.numel():  # some are left out
        return not of_one
    if "B" not in letters:  # items and heads are one axis: nobody knows how many are of one item
        return not any(size % heads.shape[letters.index("D")] == 0 for size in of_one)
    return math.prod(of_one) < _width(merged)


def _differ(owner: Tensor, axis: int) -> bool:
    """Tell whether a row along an axis has several owners."""
    known = owner >= 0
    least = torch.where(known, owner, torch.iinfo(owner.dtype).max).amin(axis)
    most = torch.where(known, owner, -1).amax(axis)
    return bool((known.any(axis) & (least != most)).any())
