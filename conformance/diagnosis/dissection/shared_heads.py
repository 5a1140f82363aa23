"""Keys and values of another key/value head or item, all of them or those of a cache alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Final

import torch
from torch import Tensor

from ..mistakes import DeclaredCall, NamedMistake
from ..mistakes.named_mistake import Heads, HeadsChange
from .reading import Reading
from .statement import statement

_MOVES: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("of the first key/value head", lambda t: t[:, :1].expand_as(t)),
    ("of the last key/value head", lambda t: t[:, -1:].expand_as(t)),
    ("of the key/value head before", lambda t: t.roll(1, 1)),
    ("of the key/value head after", lambda t: t.roll(-1, 1)),
    ("of the opposite key/value head", lambda t: t.flip(1)),
    ("of the first batch item", lambda t: t[:1].expand_as(t)),
    ("of the batch item before", lambda t: t.roll(1, 0)),
    ("of the batch item after", lambda t: t.roll(-1, 0)),
    ("of the opposite batch item", lambda t: t.flip(0)),
    ("of the token counted from the end", lambda t: t.flip(2)),
    ("of the token before", lambda t: t.roll(1, 2)),
    ("of the token after", lambda t: t.roll(-1, 2)),
    ("of zeros", torch.zeros_like),
)
_ROLES: Final = ("key", "value", "key and value")
_PARTS: Final = ("", "cached ", "new ")


def shared_head_statements(reading: Reading) -> Iterator[NamedMistake]:
    """Keys or values that are moved before the heads of a group share them.

    Proposed for calls with such heads, or with a cache: elsewhere others say it.
    """
    call = reading.call
    sizes, past = call.inputs.geometry, call.inputs.past
    grouped = sizes.num_kv_heads < sizes.num_heads
    if call.inputs.is_layer or not (grouped or past):
        return
    heads = call.projected_heads()
    for (words, move), role, part in product(_MOVES, _ROLES, _PARTS if past else ("",)):
        moved = _moved(heads, move, role, part, past)
        output = call.attend(moved).output
        if reading.agree(reading.answer, output):
            yield _statement(words, move, role, part)


def _moved(
    heads: Heads, move: Callable[[Tensor], Tensor], role: str, part: str, past: int
) -> Heads:
    query, key, value = heads

    def changed(tensor: Tensor) -> Tensor:
        if not part:
            return move(tensor)
        cached, new = tensor[:, :, :past], tensor[:, :, past:]
        parts = (move(cached), new) if part == "cached " else (cached, move(new))
        return torch.cat(parts, dim=2)

    return (
        query,
        changed(key) if "key" in role else key,
        changed(value) if "value" in role else value,
    )


def _statement(words: str, move: Callable[[Tensor], Tensor], role: str, part: str) -> NamedMistake:
    def change(call: DeclaredCall, before: Heads) -> Heads | None:
        past = call.inputs.past
        return None if part and not past else _moved(before, move, role, part, past)

    heads: HeadsChange = change
    return statement(
        f"heads: {part}{role} {words}",
        f"the {part}{role} {words} stands in place of each one's own",
        "let head h of each batch item read its own keys and values: those of head h // group",
        heads=heads,
    )
