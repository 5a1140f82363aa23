"""Misplaced diagonals are named, and packed sequences told apart where they do not begin or end."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import conformance
from conformance.clauses.subject import Subject
from conformance.declare.candidate import Candidate
from conformance.diagnosis import diagnose

_LENGTHS_SO_FAR = "length of each item is that of all items up to it"
Bounds = Callable[[int, int, int, int], tuple[int, int]]


def packed(bounds: Bounds, diagonal: str) -> Candidate:
    """Packed sequences, the keys of each between ``bounds`` of first, end, place and count.

    The ``diagonal`` ends at the last of those keys if it is moved, else where it should.
    """

    @conformance.core(layout="varlen", causal="bottom-right", empty_rows="zeros")
    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,  # noqa: ARG001 (the layout's)
        max_seqlen_k: int,  # noqa: ARG001
        causal: bool = False,
    ) -> Tensor:
        answer = torch.zeros_like(query[..., :1].expand(*query.shape[:2], value.shape[-1]))
        starts, ends = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
        for i in range(len(starts) - 1):
            first, end = bounds(ends[i], ends[i + 1], i, len(starts) - 1)
            first, end = max(first, 0), min(end, len(key))
            q, k, v = query[starts[i] : starts[i + 1]], key[first:end], value[first:end]
            logits = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
            if causal:
                last = end if diagonal == "moved" else ends[i + 1]
                visible = torch.ones_like(logits, dtype=torch.bool).tril(last - first - len(q))
                logits = logits.masked_fill(~visible, -math.inf)
            weights = logits.softmax(-1).nan_to_num(0.0)
            answer[starts[i] : starts[i + 1]] = torch.einsum("hqk,khd->qhd", weights, v)
        return answer

    return attend


def last_lost(first: int, end: int, _place: int, _count: int) -> tuple[int, int]:
    return first, max(end - 1, min(first + 1, end))


def last_of_last_lost(first: int, end: int, place: int, count: int) -> tuple[int, int]:
    return last_lost(first, end, place, count) if place == count - 1 else (first, end)


@pytest.mark.parametrize(
    ("bounds", "diagonal", "name", "condition"),
    [
        (last_lost, "moved", "sequences-lose-their-last-key", ""),
        (last_lost, "right", "sequences-lose-their-last-key", ""),
        (
            last_of_last_lost,
            "moved",
            "sequences-lose-their-last-key",
            "only for the last batch item",
        ),
        (lambda a, e, *_: (a, e + 1), "moved", "sequences-see-the-key-after", ""),
        (lambda a, e, *_: (a // 4 * 4, e), "moved", "sequences-in-whole-tiles", "tiles of 4"),
        (lambda a, e, *_: (a, -(-e // 2) * 2), "moved", "sequences-in-whole-tiles", "tiles of 2"),
        (
            lambda a, e, *_: (a, a + e),
            "moved",
            "length of each item is that of all items up to it",
            "",
        ),
    ],
)
def test_keys_of_neighbouring_sequences_are_named(
    bounds: Bounds, diagonal: str, name: str, condition: str
) -> None:
    """A key that a sequence loses, or sees of the next one, with the diagonal of either length."""
    entry: dict[str, Any]
    (entry,) = diagnose(Subject(packed(bounds, diagonal), "float32"))
    assert (entry["name"], condition in entry["text"]) == (name, True), entry["text"]


@pytest.mark.parametrize(
    ("cuts", "said"),
    [
        (lambda starts: [*starts[:2], starts[-1]], "all but the first sequence attend each other"),
        (lambda starts: [0, *starts[-2:]], "all but the last sequence attend each other"),
        (lambda starts: [*starts[:-1:2], starts[-1]], "two neighbouring sequences each attend"),
    ],
)
def test_sequences_of_which_some_are_not_separated(
    cuts: Callable[[list[int]], list[int]], said: str
) -> None:
    """Offsets of which only some are obeyed: which sequences are one is said."""

    @conformance.core(layout="varlen", empty_rows="zeros")
    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,  # noqa: ARG001 (the layout's)
        max_seqlen_k: int,  # noqa: ARG001
    ) -> Tensor:
        of_queries, of_keys = (cuts(starts.tolist()) for starts in (cu_seqlens_q, cu_seqlens_k))
        answers = []
        for (first, last), (begin, end) in zip(
            pairwise(of_queries), pairwise(of_keys), strict=True
        ):
            logits = torch.einsum("qhd,khd->hqk", query[first:last], key[begin:end])
            weights = (logits * query.shape[-1] ** -0.5).softmax(-1).nan_to_num(0.0)
            answers.append(torch.einsum("hqk,khd->qhd", weights, value[begin:end]))
        return torch.cat(answers)

    entry: dict[str, Any]
    (entry,) = diagnose(Subject(attend, "float32"))
    assert entry["name"] == "sequences-not-separated"
    assert said in entry["text"]


def test_a_triangle_that_is_misplaced_beside_a_right_window_is_named() -> None:
    """The diagonal alone starts at the first key; the window stands where it should."""

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        causal: bool = False,
        window: tuple[int, int] | None = None,
    ) -> Tensor:
        scores = query @ key.mT * query.shape[-1] ** -0.5
        queries, keys = scores.shape[-2:]
        ahead = torch.arange(keys) - torch.arange(keys - queries, keys)[:, None]
        hidden = torch.zeros_like(ahead, dtype=torch.bool)
        if window is not None:
            left, right = (side if side >= 0 else math.inf for side in window)
            hidden = (ahead < -left) | (ahead > right)
        if causal:
            hidden |= torch.ones_like(hidden).triu(1)
        return scores.masked_fill(hidden, -math.inf).softmax(-1).nan_to_num(0.0) @ value

    declare = conformance.core(
        dtypes=["float32"], causal="bottom-right", features=["window"], empty_rows="any"
    )
    (entry,) = diagnose(Subject(declare(attend), "float32"))
    assert entry["name"] == "causal-top-left"
