"""What is moved or exchanged: values, answers and operands that are those of another place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from ..._golden import golden
from ...tolerance import model
from ..agreement import BatteryAnswer
from ..mistakes import DeclaredCall, NamedMistake
from ..mistakes._steps import weighing
from ..mistakes.named_mistake import IMPOSSIBLE, Heads, HeadsChange, with_every_key
from ..stage_edits import stage_edits
from .influence import (
    CHANGES,
    GROUPINGS,
    orders,
    regrouped,
)
from .reading import Reading, statement

_OWN: Final = "let each head of each batch item read its own {}"


def moved_value_statements(reading: Reading) -> Iterator[NamedMistake]:
    """Changes of the values with which the weights that were read make the answer."""
    run = with_every_key(reading.attention.run)
    for one in stage_edits("core"):
        if [edit.stage for edit in one.edits] == ["value_heads"]:
            with suppress(*IMPOSSIBLE):
                moved: Tensor = run.edited(*one.edits)["shared_value"]
                if reading.answers(reading.weights @ moved):
                    yield one


def key_order_statements(reading: Reading) -> Iterator[NamedMistake]:
    """Values of other tokens, such that each weight stands at another key, for a layer's heads."""
    exact = reading.attention.weights
    own = torch.eye(exact.shape[-1], dtype=exact.dtype).expand(*exact.shape[:2], -1, -1)
    if reading.agree(reading.weights, exact):
        return
    for words, move in (*CHANGES, *orders(reading)):
        if "token" in words and reading.agree(reading.weights, exact @ move(own)):
            yield _statement_of_value(words, move)


def _statement_of_value(words: str, move: Callable[[Tensor], Tensor]) -> NamedMistake:
    def core(_call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
        moved = dataclasses.replace(attention, value=move(attention.value))
        return weighing(moved, attention.weights)

    return statement(
        f"values: {words}", f"the weights meet the value {words}", _OWN.format("value"), core=core
    )


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
    (
        "of the token before, the first one twice,",
        lambda t: torch.cat([t[:, :, :1], t], 2)[:, :, :-1],
    ),
    (
        "of the token after, the last one twice,",
        lambda t: torch.cat([t, t[:, :, -1:]], 2)[:, :, 1:],
    ),
    ("of the token before, and zeros for the first,", lambda t: functional.pad(t, (0, 0, 1, -1))),
    ("of zeros", torch.zeros_like),
)
_ROLES: Final = ("key", "value", "key and value")
_PARTS: Final = ("", "cached ", "new ")
_ALL: Final = "whole "
_OTHER: Final = "other "


def _in_integers(*axes: int) -> Callable[[Tensor], Tensor]:
    """Eight bits, with one step for all that lies along some axes."""

    def rounded(tensor: Tensor) -> Tensor:
        largest = tensor.abs().amax(axes, keepdim=True)
        step = torch.where(largest == 0.0, 1.0, largest) / 127.0
        return (tensor / step).round() * step

    return rounded


# What becomes of cached keys or values besides their place.
_STORED: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("multiplied by the scale", lambda t: t * t.shape[-1] ** -0.5),
    *(
        (f"rounded to {words}", lambda t, dtype=dtype: t.to(dtype).to(t.dtype))
        for words, dtype in (
            ("float16", torch.float16),
            ("bfloat16", torch.bfloat16),
            ("float8_e4m3fn", torch.float8_e4m3fn),
            ("float8_e5m2", torch.float8_e5m2),
        )
    ),
    ("rounded to int8 for each token and head", _in_integers(-1)),
    ("rounded to int8 for each channel and head", _in_integers(-2)),
    ("rounded to int8 together", _in_integers(0, 1, 2, 3)),
)


def shared_head_statements(reading: Reading) -> Iterator[NamedMistake]:
    """Keys or values moved before heads share them, or of a cache: elsewhere others say it."""
    call = reading.call
    sizes, past = call.inputs.geometry, call.inputs.past
    grouped = sizes.num_kv_heads < sizes.num_heads
    if call.inputs.is_layer or not (grouped or past):
        return
    yield from _of_moved_heads(call, lambda output: reading.agree(reading.answer, output))


def cached_head_statements(answer: BatteryAnswer) -> Iterator[NamedMistake]:
    """The same of a layer with a cache, whose weights are not read: by its answer."""
    if answer.inputs.past and answer.fits:
        yield from _of_moved_heads(*_judged(answer))


def layer_head_statements(answer: BatteryAnswer) -> Iterator[NamedMistake]:
    """Keys, values or both of a layer's heads at another place: by its answer."""
    if answer.fits:
        yield from _of_moved_heads(*_judged(answer))


def _judged(answer: BatteryAnswer) -> tuple[DeclaredCall, Callable[[Tensor], bool]]:
    """A call, and whether outputs of its heads make the answer that was given."""
    call = DeclaredCall(inputs=answer.inputs, semantics=answer.subject.declaration.semantics)
    size = answer.exact.output.abs().amax().clamp_min(model.SAME_READ**2)

    def explained(output: Tensor) -> bool:
        left = (answer.output - call.answer_of(output)).abs()
        return bool((left <= model.SAME_READ * size).all())

    return call, explained


def _of_moved_heads(
    call: DeclaredCall, explained: Callable[[Tensor], bool]
) -> Iterator[NamedMistake]:
    """Keys or values at another place, those of a cache or new ones alone, that are explained."""
    heads, past = call.projected_heads(), call.inputs.past
    parts = _PARTS if past else ("",)
    for (words, move), role, part in (*product(_MOVES, _ROLES, parts), *_behind(past)):
        if explained(call.attend(_moved(heads, move, role, part, past)).output):
            yield _statement(words, move, role, part)
    for words, order in GROUPINGS if call.inputs.geometry.num_kv_heads > 1 else ():
        regroup = regrouped(order)
        if explained(call.attend(regroup(call, heads)).output):
            said = f"query head h reads key/value head {words}"
            fix = "let query head h read key/value head h // (query heads // key/value heads)"
            yield statement(f"heads: {said}", said, fix, heads=regroup)


def _behind(past: int) -> Iterator[tuple[tuple[str, Callable[[Tensor], Tensor]], str, str]]:
    """Cached keys or values behind the new ones, taken for each other, or stored otherwise."""
    if past:
        for role in _ROLES[:-1]:
            yield ("behind the new ones", torch.clone), role, _ALL
        for role in _ROLES:
            yield ("of the other kind", torch.clone), role, _OTHER
        yield from product(_STORED, _ROLES, ("cached ",))


def _moved(
    heads: Heads, move: Callable[[Tensor], Tensor], role: str, part: str, past: int
) -> Heads:
    query, key, value = heads
    if part == _OTHER and key.shape != value.shape:
        return heads

    def changed(tensor: Tensor) -> Tensor:
        if not part:
            return move(tensor)
        if part == _ALL:
            return tensor.roll(-past, 2)
        cached, new = tensor[:, :, :past], tensor[:, :, past:]
        if part == _OTHER:
            return torch.cat([(value if tensor is key else key)[:, :, :past], new], dim=2)
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
    if part == _ALL:
        other = "values" if role == "key" else "keys"
        said = f"the cached {role}s are put behind the new ones, the cached {other} before them"
        fix = "concatenate keys and values alike: what is cached, then what is new"
        return statement(f"heads: cached {role}s behind the new ones", said, fix, heads=heads)
    if part == _OTHER:
        used = {"key": "values are used as cached keys", "value": "keys are used as cached values"}
        said = f"the cached {used.get(role, 'keys and values are taken for each other')}"
        name, fix = f"heads: cached {role} of the other kind", "keep what is cached of each apart"
        return statement(name, said, fix, heads=heads)
    if (words, move) in _STORED:
        said = f"each {part}{role} is {words} before the new ones join it"
        fix = "use cached keys and values as they are: a cache keeps what the projections gave"
        return statement(f"heads: {part}{role} {words}", said, fix, heads=heads)
    return statement(
        f"heads: {part}{role} {words.rstrip(',')}",
        f"the {part}{role} {words} stands in place of each one's own",
        "keep each key and value in its own place along the tokens, in a cache as well"
        if "token" in words
        else "let head h of each batch item read its own keys and values: those of head h // group",
        heads=heads,
        misplaces="token" not in words,
    )
