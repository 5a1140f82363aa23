"""Comparisons that show other keys are read, and stated by what is compared in another way."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from examples import CLAUSES, core, plan, problem
from torch import Tensor

from conformance.clauses.subject import Subject
from conformance.diagnosis import Diagnostician, diagnose

Window = tuple[int, int] | None
# What a query sees, from keys less queries, the flag, the window and the numbers of both.
Seen = Callable[[Tensor, int, tuple[int, int], int, int], Tensor]


def comparing(seen: Seen) -> Callable[..., Tensor]:
    """A core that shows other keys; rows without any are zeros."""

    def attend(
        query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False, window: Window = None
    ) -> Tensor:
        queries, keys = query.shape[2], key.shape[2]
        ahead = torch.arange(keys) - torch.arange(queries)[:, None]
        shown = seen(ahead, causal, window or (-1, -1), queries, keys)
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        weights = scores.masked_fill(~shown, -math.inf).softmax(dim=-1)
        return weights.masked_fill(~shown.any(dim=-1, keepdim=True), 0.0) @ value

    return attend


def windowed(ahead: Tensor, window: tuple[int, int]) -> Tensor:
    """What a window shows."""
    left, right = window
    return ((ahead >= -left) | (left < 0)) & ((ahead <= right) | (right < 0))


def flag_turned(
    ahead: Tensor, causal: int, window: tuple[int, int], queries: int, keys: int
) -> Tensor:
    """``if not causal``."""
    ahead = ahead - (keys - queries)
    return ((ahead <= 0) | bool(causal)) & windowed(ahead, window)


def end_turned(
    ahead: Tensor, causal: int, window: tuple[int, int], queries: int, keys: int
) -> Tensor:
    """The keys up to the left end of a window, in place of those from there on."""
    ahead, (left, right) = ahead - (keys - queries), window
    shown = (ahead <= 0) | (not causal)
    return shown & ((ahead <= -left) | (left < 0)) & windowed(ahead, (-1, right))


def moved(ahead: Tensor, causal: int, window: tuple[int, int], queries: int, _keys: int) -> Tensor:
    """Queries moved by their own number."""
    ahead = ahead - queries
    return ((ahead <= 0) | (not causal)) & windowed(ahead, window)


def whole_tiles(
    ahead: Tensor, causal: int, window: tuple[int, int], queries: int, keys: int
) -> Tensor:
    """The tiles that a window meets, whole."""
    ahead, (left, right), places = ahead - (keys - queries), window, torch.arange(keys)
    own = places - ahead
    first, end = (own - left) // 4 * 4, (own + right + 4) // 4 * 4
    shown = ((places >= first) | (left < 0)) & ((places < end) | (right < 0))
    return shown & ((ahead <= 0) | (not causal))


def cut_tiles(
    ahead: Tensor, causal: int, window: tuple[int, int], queries: int, keys: int
) -> Tensor:
    """A window from the next tile on."""
    ahead, left, places = ahead - (keys - queries), window[0], torch.arange(keys)
    shown = (places >= (places - ahead - left + 7) // 8 * 8) | (left < 0)
    return shown & windowed(ahead, window) & ((ahead <= 0) | (not causal))


STATED: dict[str, tuple[Seen, str]] = {
    "ends outwards to tiles": (
        whole_tiles,
        "table of the window: made with the whole tile of 4 keys in which it begins and ends",
    ),
    "an end inwards to tiles": (
        cut_tiles,
        "table of the window: made with no part of the tile of 8 keys in which it begins",
    ),
    "the flag turned round": (
        flag_turned,
        "causal flag: inverted",
    ),
    "an end turned round": (
        end_turned,
        (
            "table of the window: made before the query of the keys at its end or beyond, not "
            "those within"
        ),
    ),
    "another number": (
        moved,
        "distances from query to key: counted from behind as many keys as there are queries",
    ),
}


def candidate_of(seen: Seen) -> Subject:
    """A subject with a window and a causal flag that ends at the last key."""
    options = {"masks": [], "causal": "bottom-right", "features": ["window"]}
    return Subject(
        core(comparing(seen), **options, empty_rows="zeros", dtypes=["float32"]), "float32"
    )


@pytest.mark.one_in(2)
@pytest.mark.parametrize("wrong", STATED, ids=str)
def test_what_is_compared_otherwise_is_stated(wrong: str) -> None:
    """A flag or an end that is turned round, and another number to move queries by, are stated."""
    seen, name = STATED[wrong]
    (entry,) = diagnose(candidate_of(seen))
    assert entry["name"] == name
    assert entry["fix"]


@pytest.mark.nightly
def test_lengths_that_eight_bits_do_not_hold_are_told() -> None:
    """Past 127 they are negative, which shows with more keys than are read one by one."""

    def attend(
        query: Tensor, key: Tensor, value: Tensor, *, lengths: Tensor | None = None
    ) -> Tensor:
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        if lengths is not None:
            lengths = lengths.to(torch.int8)[:, None, None, None]
            scores = scores.masked_fill(torch.arange(key.shape[2]) >= lengths, -math.inf)
        return scores.softmax(-1).nan_to_num(0.0) @ value

    promises = {"masks": ["lengths"], "features": [], "empty_rows": "zeros", "dtypes": ["float32"]}
    subject = Subject(core(attend, causal=None, **promises), "float32")
    failing = problem(key_length=168, mask=plan("full", form="lengths", shape="B"))
    (entry,) = Diagnostician(subject).explain(CLAUSES["numerics.any-length"], failing)
    assert entry["name"] == (
        "mask: true for as many keys as a signed byte holds of the number of those that it keeps"
    )


def test_places_that_eight_bits_do_not_hold_are_told() -> None:
    """Past 127 they are negative: one causal call of the battery shows it, with many keys."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False) -> Tensor:
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        if causal:
            queries, keys = (torch.arange(n) for n in scores.shape[-2:])
            places = (queries + len(keys) - len(queries)).to(torch.int8)
            scores = scores.masked_fill(keys.to(torch.int8) > places[:, None], -math.inf)
        return scores.softmax(-1).nan_to_num(0.0) @ value

    promises = {"masks": [], "features": [], "empty_rows": "any", "dtypes": ["float32"]}
    (entry,) = diagnose(Subject(core(attend, causal="bottom-right", **promises), "float32"))
    assert entry["name"] == ("distances from query to key: negative past 127, as in a signed byte")
