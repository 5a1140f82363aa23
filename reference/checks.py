"""Argument checks whose message names the argument, its value and the limit."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def check_argument(condition: bool, name: str, problem: str) -> None:  # noqa: FBT001
    """Raise ``ValueError("<name> <problem>")`` unless the condition holds."""
    if not condition:
        msg = f"{name} {problem}"
        raise ValueError(msg)


def check_tensor(value: object, name: str, axes: str) -> None:
    """Require a tensor with as many axes as ``axes`` has words, for example "B H Lq D"."""
    if not isinstance(value, Tensor):
        msg = f"{name} is a {type(value).__name__}, not a torch.Tensor"
        raise TypeError(msg)
    wanted = axes.split()
    if value.dim() != len(wanted):
        shown = f"{len(wanted)} axes [{', '.join(wanted)}]"
        msg = f"{name} has shape {list(value.shape)}: it needs {shown}"
        raise ValueError(msg)


def check_divides(count: int, name: str, width: int, whose: str) -> None:
    """Require a positive number of heads that divides a width or another number of heads."""
    fits = isinstance(count, int) and count > 0 and width % count == 0
    check_argument(fits, name, f"is {count}: it must be positive and divide {width}, {whose}")


def check_window(window: object) -> None:
    """Require None or two integers ``(left, right)`` from -1, which means no limit."""
    if window is None:
        return
    sides = window if isinstance(window, (tuple, list)) else ()
    fits = len(sides) == len(("left", "right")) and all(
        isinstance(side, int) and side >= -1 for side in sides
    )
    check_argument(fits, "window", f"is {window}, not (left, right) with integers from -1")


def check_size(value: Tensor, name: str, axis: int, wanted: int, because: str) -> None:
    """Require one axis of a tensor to have a given size; ``because`` names its source."""
    if value.shape[axis] != wanted:
        msg = f"{name} has shape {list(value.shape)}: axis {axis} must be {wanted}, {because}"
        raise ValueError(msg)


def check_broadcasts(value: Tensor, name: str, shape: Sequence[int]) -> None:
    """Require a mask-like tensor of four axes, each of size 1 or of the score's size."""
    check_tensor(value, name, "B H Lq Lk")
    fits = all(have in (1, want) for have, want in zip(value.shape, shape, strict=True))
    check_argument(
        fits,
        name,
        f"has shape {list(value.shape)}, which does not broadcast to {list(shape)} [B, H, Lq, Lk]",
    )


def check_lengths(lengths: object, shape: Sequence[int]) -> None:
    """Require the number of kept keys, integers ``[B]`` or ``[B, Lq]``, of scores of a shape."""
    batch, _, query_length, key_length = shape
    if not isinstance(lengths, Tensor):
        msg = f"lengths is a {type(lengths).__name__}, not a torch.Tensor"
        raise TypeError(msg)
    fits = tuple(lengths.shape) in ((batch,), (batch, query_length))
    check_argument(
        fits,
        "lengths",
        f"has shape {list(lengths.shape)}, not [{batch}] or [{batch}, {query_length}]",
    )
    whole = not lengths.is_floating_point() and lengths.dtype != torch.bool
    check_argument(whole, "lengths", f"has dtype {lengths.dtype}, not an integer one")
    inside = bool(((lengths >= 0) & (lengths <= key_length)).all())
    check_argument(inside, "lengths", f"has entries outside 0..{key_length}")
