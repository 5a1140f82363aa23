"""Finds tables in a module's computation whose numbers change no answer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn

from .trial import duplicate

# Random weights are no larger than the matrices of a layer of this width.
_NARROW: Final = 4


def awake(module: nn.Module) -> nn.Module:
    """A copy in eval mode with random numbers in zero weights, which hide every effect behind them.

    Raises DeclarationError where the module cannot be copied.
    """
    copied, generator = duplicate(module).eval(), torch.Generator().manual_seed(0)
    for weight in copied.parameters():
        if weight.is_floating_point() and not bool(weight.any()):
            drawn = torch.randn(weight.shape, generator=generator).to(weight)
            weight.data = drawn / max(_NARROW, weight.shape[-1] if weight.dim() else 1) ** 0.5
    return copied


def idle_tables(module: nn.Module, answer: Callable[[nn.Module], Any], *, hides: bool) -> list[str]:
    """Names of called parts with tables whose numbers change no bit of any answer.

    ``answer`` calls a copy. An example is a part with rotary positions that rotates queries and
    keys by equal angles. Tables rebuilt in every call are excluded, and so are masks of two numbers
    where the module ``hides`` keys without them: a mask may serve an unused path.
    """
    with contextlib.suppress(Exception), torch.no_grad():  # the user's module may raise anything
        called = _called(awake(module), answer, 3 if hides else 1)
        before = answer(awake(module))
        return [name for name in called if _is_idle(module, name, answer, before)]
    return []


def _called(module: nn.Module, answer: Callable[[nn.Module], Any], least: int) -> list[str]:
    """The parts whose forward runs, with tables of at least ``least`` different numbers."""
    names: dict[str, None] = {}
    parts = {
        name: part
        for name, part in module.named_modules()
        if name and any(len(table.unique()) >= least for _, table in _tables(part))
    }
    handles = [
        part.register_forward_hook(lambda *_call, name=name: names.setdefault(name))
        for name, part in parts.items()
    ]
    answer(module)
    for handle in handles:
        handle.remove()
    return list(names)


def _is_idle(module: nn.Module, name: str, answer: Callable[[nn.Module], Any], before: Any) -> bool:
    """Whether answers stay equal when the tables of a part get new numbers, or shifted rows."""
    for change in (_other_numbers, _other_rows):
        changed = awake(module)
        answer(changed)  # what the first call keeps is a table from now on
        part = changed.get_submodule(name)
        given = {key: change(table) for key, table in _tables(part)}
        moved = any(not torch.equal(getattr(part, key), table) for key, table in given.items())
        for key, table in given.items():
            setattr(part, key, table)
        after = answer(changed)
        kept = any(getattr(part, key, None) is table for key, table in given.items())
        if moved and kept and _same(before, after):
            return True
    return False


def _other_numbers(table: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return (1 + torch.rand(table.shape, generator=generator)).to(table)


def _other_rows(table: Tensor) -> Tensor:
    """A table with its rows shifted by one: equal angles of queries and keys cancel in products."""
    axis = next((axis for axis, size in enumerate(table.shape) if size > 1), None)
    return table.clone() if axis is None else table.roll(1, axis)


def _tables(part: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """A part's own floating-point tensors besides parameters, by name."""
    for key, value in (*part.named_buffers(recurse=False), *vars(part).items()):
        if isinstance(value, Tensor) and value.is_floating_point() and value.numel():
            yield key, value


# Relative difference of two equal answers.
_ROUNDING: Final = 1e-5


def _same(one: Any, other: Any) -> bool:
    """Whether two answers, tensors or containers of tensors, are equal up to rounding."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.shape != other.shape:
            return False
        room = _ROUNDING * float(one.abs().max()) if one.numel() else 0.0
        return bool(((one - other).abs() <= room).all())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)
