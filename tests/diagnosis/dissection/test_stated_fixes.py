"""A fix says what the code does not do yet: each is that of the mistake which was read."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from examples import core
from torch import Tensor

import conformance
from conformance.clauses.subject import Subject
from conformance.diagnosis import diagnose

PLAIN = {"masks": [], "causal": None, "features": [], "empty_rows": "any", "dtypes": ["float32"]}


def told(function: Callable[..., Tensor], **promises: Any) -> tuple[str, str]:
    """What is wrong, and what to do."""
    (entry,) = diagnose(Subject(core(function, **{**PLAIN, **promises}), "float32"))
    return entry["text"], entry["fix"]


def scores(query: Tensor, key: Tensor) -> Tensor:
    """Scaled dot products."""
    return query @ key.mT / math.sqrt(query.shape[-1])


@pytest.mark.parametrize("of_sinks", [False, True])
def test_a_sink_outside_the_maximum(of_sinks: bool) -> None:  # noqa: FBT001 (a parameter)
    """What joins a sum relative to a maximum must be relative to the same."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *, sinks: Tensor | None = None) -> Tensor:
        logits = scores(query, key)
        if sinks is None:
            return logits.softmax(-1) @ value
        sink, most = sinks[:, None, None], logits.amax(-1, keepdim=True)
        powers = (logits - (torch.maximum(most, sink) if of_sinks else most)).exp()
        return powers / (powers.sum(-1, keepdim=True) + sink.exp()) @ value

    text, fix = told(attend, features=["sinks"])
    assert "made with exp(sink) beside exponentials that are relative" in text
    assert "multiply what is made without a sink by 1 / (1 + exp(sink - log-sum-exp" in fix


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (lambda _tile, keys: 1.0 / math.ceil(keys / 4), "averaged"),
        (lambda _tile, _keys: 1.0, "added"),
        (lambda tile, keys: tile / keys, "averaged by their numbers of keys"),
    ],
)
def test_softmaxes_of_tiles(share: Callable[[int, int], float], words: str) -> None:
    """Tiles that do not know of each other are told as softmaxes of their own."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        parts = zip(scores(query, key).split(4, -1), value.split(4, 2), strict=True)
        return torch.stack(
            [part.softmax(-1) @ v * share(v.shape[2], value.shape[2]) for part, v in parts]
        ).sum(0)

    text, fix = told(attend)
    said = f"the softmax is made of a softmax of each tile of 4 keys, {words}"
    assert text.removesuffix(" (only with more than 4 keys)") == said
    assert "log-sum-exp" in fix


def test_a_diagonal_that_ends_before_the_own_key() -> None:
    """The number of keys that a query does not attend is told."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False) -> Tensor:
        logits = scores(query, key)
        if causal:
            after = key.shape[2] - query.shape[2] - 1
            hidden = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(after)
            logits = logits.masked_fill(hidden, -math.inf)
        return logits.softmax(-1).nan_to_num(0.0) @ value

    text, fix = told(attend, causal="bottom-right")
    assert text == "the causal table is made with 2 fewer keys up to the query's own"
    assert fix == "take the causal table as it is"


def _turned(heads: Tensor, start: int, *, neighbours: bool) -> Tensor:
    """Pairs of channels turned by angles that are laid out for the other kind of pair."""
    size = heads.shape[-1]
    at = torch.arange(start, start + heads.shape[-2], dtype=heads.dtype)
    angles = torch.outer(at, 10000.0 ** (-torch.arange(0, size, 2, dtype=heads.dtype) / size))
    if neighbours:
        angles = torch.cat([angles, angles], -1)
        partner = torch.stack([-heads[..., 1::2], heads[..., ::2]], -1).flatten(-2)
    else:
        angles = angles.repeat_interleave(2, -1)
        one, two = heads.chunk(2, -1)
        partner = torch.cat([-two, one], -1)
    return heads * angles.cos() + partner * angles.sin()


@pytest.mark.parametrize(("neighbours", "layout"), [(True, "repeat_interleave"), (False, "cat")])
def test_angles_of_the_other_pairs(neighbours: bool, layout: str) -> None:  # noqa: FBT001
    """Frequencies that are laid out for other pairs are told to be laid out for the own ones."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        ahead = key.shape[2] - query.shape[2]
        turned = (
            _turned(query, ahead, neighbours=neighbours),
            _turned(key, 0, neighbours=neighbours),
        )
        return scores(*turned).softmax(-1) @ value

    point = conformance.Semantics(rotary="interleaved" if neighbours else "halves")
    _, fix = told(attend, semantics=point, geometry={"head_size": 8})
    assert "give both channels of a pair one angle: " in fix
    assert layout in fix.split(", not ")[0]


@pytest.mark.parametrize(
    ("upper", "late", "words"),
    [
        (
            False,
            True,
            (
                "if every call is meant to be causal, declare it: "
                'causal="bottom-right", always_causal=True'
            ),
        ),
        (True, False, "if it is meant to be causal, hide those after it: tril, not triu"),
    ],
)
def test_a_triangle_that_is_not_declared_may_be_meant(
    upper: bool,  # noqa: FBT001
    late: bool,  # noqa: FBT001
    words: str,
) -> None:
    """Nothing says that calls are causal: both what is declared and what is meant are mended."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        logits = scores(query, key)
        ones = torch.ones(logits.shape[-2:], dtype=torch.bool)
        ahead = logits.shape[-1] - logits.shape[-2]
        kept = ones.triu(ahead) if upper else ones.tril(ahead)
        if late:
            return logits.softmax(-1).masked_fill(~kept, 0.0) @ value
        return logits.masked_fill(~kept, -torch.inf).softmax(-1).nan_to_num() @ value

    _, fix = told(attend)
    assert fix.endswith(f"; {words}")


def test_values_are_left_as_they_are() -> None:
    """Turned values are to be left alone; queries and keys are turned already."""
    from conformance.diagnosis.mistakes import named_mistakes  # noqa: PLC0415 (costs a second)

    (fix,) = {one.fix for one in named_mistakes() if one.name == "rotary-value-too"}
    assert "leave the values as they are" in fix


@pytest.mark.parametrize(
    ("left", "right", "words"),
    [
        (1, 0, "one key more before the query than asked for"),
        (1, 1, "one key more than asked for on both sides of the query"),
        (-1, 0, "one key fewer before the query than asked for"),
    ],
)
def test_a_window_of_another_width_says_its_side(left: int, right: int, words: str) -> None:
    """A window that is one key wider or narrower is told with the side that is wrong."""

    def attend(
        query: Tensor, key: Tensor, value: Tensor, *, window: tuple[int, int] | None = None
    ) -> Tensor:
        logits = scores(query, key)
        if window is not None:
            queries, keys = logits.shape[-2:]
            ahead = torch.arange(keys) - torch.arange(queries)[:, None]
            before, after = window
            hidden = (ahead < -before - left) & (before >= 0)
            hidden |= (ahead > after + right) & (after >= 0)
            logits = logits.masked_fill(hidden, -math.inf)
        return logits.softmax(-1).nan_to_num(0.0) @ value

    point = conformance.Semantics(causal_alignment="top-left")
    text, _ = told(attend, features=["window"], semantics=point)
    assert words in text


@pytest.mark.parametrize(("rounding", "words"), [(math.floor, "down"), (math.ceil, "up")])
def test_a_root_that_is_a_whole_number(rounding: Callable[[float], int], words: str) -> None:
    """A scale by the whole part of the root of the head size is told as such, not as a number."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return (query @ key.mT / rounding(query.shape[-1] ** 0.5)).softmax(-1) @ value

    text, _ = told(attend)
    assert text.endswith(f"multiplied by 1/the root of the head size, rounded {words}")
