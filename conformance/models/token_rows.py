"""Tell whether every head of a recorded attention, values included, belongs to one token.

Only calls that move numbers lie between a projection and the heads: each number of a head is
located in the projection, by its bits. Repeated numbers say nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
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


def mixed_part(recording: ModuleRecording, site: TorchSite) -> str:
    """The part of an attention whose heads mix tokens, in words; "" where none does."""
    for part in PARTS:
        edge = site.edges[part]
        heads, source = recording.values[edge.number], _before(recording, edge.number)
        places = _places(heads.tensor, source.tensor)
        if {"L", "D"} <= set(edge.letters) and _mixes_rows(places, source.tensor, edge.letters):
            lines = _lines(recording, source, recording.values[edge.number])
            return f"the heads of the {part} are split so that tokens are mixed{lines}: {_SPLIT}"
    heads = recording.values[site.output_value]
    merged = _behind(recording, heads)
    places = _places(merged.tensor, heads.tensor)
    if "L" in site.output_letters and _merges_rows(places, heads.tensor, site.output_letters):
        lines = _lines(recording, heads, merged)
        return f"its heads are merged so that tokens are mixed{lines}: {_MERGED}"
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


def _before(recording: ModuleRecording, number: int) -> Value:
    """Return the origin of a value before calls that only move numbers."""
    value = recording.values[number]
    while value.made_by is not None and value.made_by.name in _MOVES:
        reads = value.made_by.reads
        if len(reads) != 1:
            break
        value = recording.values[reads[0]]
    return value


def _behind(recording: ModuleRecording, value: Value) -> Value:
    """Return the last value that calls only moving numbers make of a value."""
    for call in recording.calls:
        moves = call.name in _MOVES and len(call.results) == 1
        if call.reads == [value.number] and moves:
            value = recording.values[call.results[0]]
    return value


def _lines(recording: ModuleRecording, first: Value, last: Value) -> str:
    """The user's lines with the reshapes between two values, in brackets; "" for none."""
    value, lines = last, list[str]()
    while value.made_by is not None and value.number != first.number:
        lines += [value.made_by.line] * bool(value.made_by.line)
        value = recording.values[value.made_by.reads[0]]
    return f" ({', '.join(dict.fromkeys(reversed(lines)))})" if lines else ""


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


def _merges_rows(places: Tensor, heads: Tensor, letters: str) -> bool:
    """Tell whether rows of merged heads hold numbers of several tokens, whatever the axes."""
    if bool((places < 0).all()) or heads.shape[letters.index("L")] == 1:
        return False
    owners = [axis for axis, letter in enumerate(letters) if letter in f"B{PARTED}L"]
    numbers = torch.arange(heads.numel()).reshape(heads.shape)
    token = torch.zeros_like(numbers)
    for axis in owners:
        place = torch.arange(heads.shape[axis]).reshape([-1] + [1] * (heads.dim() - axis - 1))
        token = token * heads.shape[axis] + place
    of_place = token.expand(heads.shape).flatten()
    owner = torch.where(places < 0, -1, of_place[places.clamp(min=0)])
    of_one = [size for axis, size in enumerate(owner.shape) if not _differ(owner, axis)]
    if owner.numel() != heads.numel():  # some are left out
        return not of_one
    if "B" not in letters:  # items and heads are one axis: nobody knows how many are of one item
        return not any(size % heads.shape[letters.index("D")] == 0 for size in of_one)
    return math.prod(of_one) < heads.numel() // math.prod(heads.shape[axis] for axis in owners)


def _differ(owner: Tensor, axis: int) -> bool:
    """Tell whether a row along an axis has several owners."""
    known = owner >= 0
    least = torch.where(known, owner, torch.iinfo(owner.dtype).max).amin(axis)
    most = torch.where(known, owner, -1).amax(axis)
    return bool((known.any(axis) & (least != most)).any())
