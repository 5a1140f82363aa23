"""A function of one input that adds position: which encoding, and for how many positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from ..._golden import golden
from ...calls.calling import CandidateFailure, guarded
from ...tolerance.position import position_bound
from .record import Findings

_WIDTHS: Final = (8, 6, 16, 32, 64, 128, 256, 512, 24, 12, 10, 100)
_LENGTH: Final = 5
_LONGEST: Final = 1 << 16


def find_positions(function: Callable[..., Any], found: Findings) -> tuple[int, list[int]] | str:
    """The longest length and the widths it takes, or why it is no known position encoding."""
    answers = {width: _added(function, _LENGTH, width) for width in _WIDTHS}
    taken = {width: added for width, added in answers.items() if added is not None}
    if not taken:
        return (
            "it takes one input and brings no projections that can be seen, and it does not add "
            "the same numbers to any input as a position encoding does: name a module, or a "
            "function of query, key and value"
        )
    width, added = next(iter(taken.items()))
    expected = golden.sinusoidal_positions(_LENGTH, width)
    if not _is(added, expected):
        return "it adds the same numbers to any input, which are no sinusoidal encoding"
    longest = _longest(function, width)
    found.add(
        "kind",
        "position encoding, sinusoidal: sines in the even channels, cosines in the odd ones",
        f"what is added to zeros and to random tokens is the golden table at width {width}",
        {"kind": "positions", "position": "sinusoidal"},
    )
    found.add(
        "sizes",
        f"widths {', '.join(str(one) for one in sorted(taken))} of those tried, up to {longest} "
        "positions" + (" at least" if longest == _LONGEST else ""),
        "longer inputs are refused, or not given the table",
        {"widths": sorted(taken), "max_length": longest},
    )
    return longest, sorted(taken)


def _added(function: Callable[..., Any], length: int, width: int) -> Tensor | None:
    """What is added to tokens, when it is the same for all of them."""
    tokens = torch.randn(2, length, width, generator=torch.Generator().manual_seed(0))
    answers = []
    for given in (torch.zeros_like(tokens), tokens):
        try:
            answer = guarded(function, (given.clone(),), {})
        except CandidateFailure:
            return None
        if not isinstance(answer, Tensor) or answer.shape != tokens.shape:
            return None
        answers.append(answer.detach().double())
    table = answers[0]
    sums = table + tokens.double()
    # The table is read off the zeros and added to the tokens: each rounds once.
    rounding = position_bound(tokens, tokens.dtype) + position_bound(table, tokens.dtype)
    if not bool(((answers[1] - sums).abs() <= rounding).all()):
        return None
    same = torch.equal(table[0], table[1]) and bool(table.abs().max() > 0)
    return table[0] if same else None


def _is(added: Tensor, expected: Tensor) -> bool:
    bound = position_bound(torch.zeros_like(expected), torch.float32)
    return bool(((added - expected).abs() <= bound).all())


def _longest(function: Callable[..., Any], width: int) -> int:
    """The largest length that is answered with the table, by doubling and bisection."""
    good, bad = _LENGTH, 2 * _LENGTH
    while bad <= _LONGEST and _right(function, bad, width):
        good, bad = bad, 2 * bad
    if bad > _LONGEST:
        return _LONGEST
    while bad - good > 1:
        middle = (good + bad) // 2
        if _right(function, middle, width):
            good = middle
        else:
            bad = middle
    return good


def _right(function: Callable[..., Any], length: int, width: int) -> bool:
    added = _added(function, length, width)
    return added is not None and _is(added, golden.sinusoidal_positions(length, width))
