"""Argument checks: nothing for a good value, one sentence that names the argument for a bad one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from refusals import refused

from reference.checks import (
    check_argument,
    check_broadcasts,
    check_divides,
    check_size,
    check_tensor,
    check_window,
)


def test_good_values_pass() -> None:
    """What fits is let through in silence."""
    check_argument(True, "name", "is wrong")  # noqa: FBT003 (the condition is what is checked)
    check_tensor(torch.zeros(1, 2, 3), "name", "B L E")
    check_size(torch.zeros(1, 2), "name", 1, 2, "the width")
    check_divides(2, "name", 6, "the width")
    check_broadcasts(torch.zeros(1, 2, 1, 4), "name", (5, 2, 3, 4))
    for window in (None, (0, 0), (-1, 3), [2, -1]):
        check_window(window)


@pytest.mark.parametrize(
    ("check", "arguments", "message"),
    [
        (check_argument, (False, "softcap", "is -1, not positive"), "softcap is -1, not positive"),
        (
            check_tensor,
            (torch.zeros(2, 3), "query", "B H Lq D"),
            "query has shape [2, 3]: it needs 4 axes [B, H, Lq, D]",
        ),
        (
            check_size,
            (torch.zeros(2, 3), "key", 1, 4, "the width of query"),
            "key has shape [2, 3]: axis 1 must be 4, the width of query",
        ),
        (
            check_divides,
            (0, "num_heads", 4, "the width"),
            "num_heads is 0: it must be positive and divide 4, the width",
        ),
        (
            check_divides,
            (3, "num_heads", 4, "the width"),
            "num_heads is 3: it must be positive and divide 4, the width",
        ),
        (
            check_divides,
            (2.0, "num_heads", 4, "the width"),
            "num_heads is 2.0: it must be positive and divide 4, the width",
        ),
        (
            check_broadcasts,
            (torch.zeros(2, 1, 1, 4), "keep", (1, 2, 3, 4)),
            "keep has shape [2, 1, 1, 4], which does not broadcast to [1, 2, 3, 4] [B, H, Lq, Lk]",
        ),
        (
            check_broadcasts,
            (torch.zeros(3, 4), "keep", (1, 2, 3, 4)),
            "keep has shape [3, 4]: it needs 4 axes [B, H, Lq, Lk]",
        ),
        (check_window, (3,), "window is 3, not (left, right) with integers from -1"),
        (
            check_window,
            ((1, 2, 3),),
            "window is (1, 2, 3), not (left, right) with integers from -1",
        ),
        (check_window, ((-2, 0),), "window is (-2, 0), not (left, right) with integers from -1"),
        (check_window, ((0.5, 1),), "window is (0.5, 1), not (left, right) with integers from -1"),
    ],
)
def test_wording(check: Any, arguments: tuple[Any, ...], message: str) -> None:
    """A bad value raises ValueError with the argument's name, its value and the limit."""
    with refused(message):
        check(*arguments)


def test_not_a_tensor() -> None:
    """Something that is no tensor is a TypeError naming the argument and the type."""
    with refused("query is a list, not a torch.Tensor", TypeError):
        check_tensor([[1.0]], "query", "B L")
