"""Keys of items read otherwise than lengths say: the wrong answers that clauses ask about."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..declare.declaration import SEQUENCES
from .arrangements import held_exactly, slots_of, there
from .inputs import Inputs
from .paging import by_rank
from .structured_masks import STRUCTURED_MASKS


def misread(
    inputs: Inputs,
    *,
    table: Tensor | None = None,
    starts: Tensor | None = None,
    lengths: Tensor | None = None,
    slots: Tensor | None = None,
    ends: Tensor | None = None,
    pages: Callable[[Tensor], Tensor] | None = None,
) -> Inputs:
    """The inputs for the golden with the keys that another ``table [B, N]`` of pages names.

    ``lengths [B]`` are how many keys are read, from ``starts [B]`` on in a tensor of all items, and
    ``slots [B, N]`` where each lies; ``ends [B]`` are the lengths by which queries find their
    places, and ``pages`` changes what the caches hold. None is as it should be.
    """
    at = slots_of(inputs)
    lengths = at.lengths if lengths is None else lengths
    longest = max(1, int(lengths.max())) if len(lengths) else 1
    rank = torch.arange(longest).expand(len(at.lengths), -1)
    if slots is None and starts is None:
        slots = at.replace(table=at.table if table is None else table).places(rank)
    elif slots is None:
        slots = starts[:, None] + rank
    held = held_exactly(inputs)
    key, value = ((each if pages is None else pages(each)).flatten(0, 1) for each in held)
    places = slots % len(key)
    return _attending(
        inputs.replace(
            key=key[places].transpose(1, 2),
            value=value[places].transpose(1, 2),
            geometry=inputs.geometry.replace(key_length=longest),
            quantised=None,
            generic=False,
        ),
        rank < lengths[:, None],
        at.lengths if ends is None else ends,
        there(inputs, "query", inputs.query),
        _structure(inputs, there(inputs, "key", inputs.key), longest),
    )


def _structure(inputs: Inputs, present: Tensor, longest: int) -> Tensor | None:
    """What a structured mask shows of keys by their order in an item ``[B, Lq, N]``, or None."""
    if inputs.keep is None or inputs.mask_form not in STRUCTURED_MASKS:
        return None
    batch, _, queries, keys = inputs.score_shape
    whole = inputs.keep.expand(batch, 1, queries, keys).transpose(2, 3)
    shown = by_rank(whole, present, fill=True).squeeze(2).transpose(1, 2)
    more = max(longest - keys, 0)
    return torch.nn.functional.pad(shown, (0, more), value=True)[..., :longest]


def _attending(
    inputs: Inputs, read: Tensor, ends: Tensor, rows: Tensor, keep: Tensor | None
) -> Inputs:
    """The inputs whose only mask says which keys queries see, by their places from ``ends`` on."""
    place = rows.cumsum(dim=-1) - 1
    if inputs.point.causal_alignment == "bottom-right":
        place = place + (ends - rows.sum(dim=-1))[:, None]
    ahead = torch.arange(read.shape[1]) - place[..., None]
    left, right = inputs.window or (-1, -1)
    seen = read[:, None] & ((ahead <= 0) | (not inputs.causal))
    seen = seen & ((ahead >= -left) | (left < 0)) & ((ahead <= right) | (right < 0))
    seen = seen if keep is None else seen & keep
    return inputs.replace(
        keep=(seen & rows[..., None])[:, None],
        mask_form=SEQUENCES,
        present=(rows, read),
        causal=False,
        window=None,
    )


def read_whole_pages(inputs: Inputs) -> Inputs:
    """The slots behind an item's last key attended to the end of the page, whatever is hidden."""
    at = slots_of(inputs)
    size = at.store.page_size or at.count
    whole = -(-at.lengths // size) * size
    wrong = misread(inputs, lengths=whole)
    rank = torch.arange(wrong.geometry.key_length)
    more = (rank >= at.lengths[:, None]) & (rank < whole[:, None])
    rows = there(inputs, "query", inputs.query)
    keep = torch.zeros((), dtype=torch.bool) if wrong.keep is None else wrong.keep
    return wrong.replace(keep=keep | (more[:, None] & rows[..., None])[:, None])
