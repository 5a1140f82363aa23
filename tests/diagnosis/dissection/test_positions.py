"""The numbers by which heads are turned are read: bases, and what half precision has rounded."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from examples import BARE_FLOAT32, CLAUSES, core, problem
from torch import Tensor

import conformance
from conformance.clauses.subject import Subject
from conformance.diagnosis import Diagnostician, diagnose
from conformance.problems.problem import Problem

Tables = Callable[[Tensor, int], tuple[Tensor, Tensor]]


def text_of(tables: Tables, failing: Problem | None = None) -> str:
    """What is said of a core that turns halves by the sines and cosines that are given."""

    def turned(heads: Tensor, start: int) -> Tensor:
        size = heads.shape[-1] // 2 * 2
        one, two, rest = heads.split([size // 2, size // 2, heads.shape[-1] - size], -1)
        cosine, sine = tables(torch.arange(start, start + heads.shape[-2]), heads.shape[-1])
        return torch.cat([one * cosine - two * sine, two * cosine + one * sine, rest], -1)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = turned(query, key.shape[2] - query.shape[2]) @ turned(key, 0).mT
        return (scores / math.sqrt(query.shape[-1])).softmax(-1) @ value

    point = conformance.Semantics(rotary="halves")
    subject = Subject(core(attend, **{**BARE_FLOAT32, "semantics": point}), "float32")
    clause = None if failing is None else CLAUSES["numerics.golden"]
    (entry,) = Diagnostician(subject).explain(clause, failing)
    text: str = entry["text"]
    return text


def frequencies(size: int, base: float = 10000.0) -> Tensor:
    """The angle that a position adds to each pair of the channels of a head."""
    return base ** -(torch.arange(0, size // 2 * 2, 2) / max(size // 2 * 2, 1))


def test_a_base_that_depends_on_the_head_size_is_read() -> None:
    """Scaling of the base for longer sequences is told by its factor, at every head size."""

    def tables(at: Tensor, size: int) -> tuple[Tensor, Tensor]:
        longer = 10000.0 * 2.0 ** (size / max(size - 2, 1))
        angles = at[:, None] * frequencies(size, longer)
        return angles.cos(), angles.sin()

    assert text_of(tables).endswith(
        "of base 10000 times 2 to the power of d / (d - 2), d being the head size"
    )


def test_tables_of_half_precision_are_told() -> None:
    """Positions, frequencies and angles kept in bfloat16 make another answer in float32."""

    def tables(at: Tensor, size: int) -> tuple[Tensor, Tensor]:
        angles = at.bfloat16()[:, None] * frequencies(size).bfloat16()
        return angles.cos().float(), angles.sin().float()

    assert text_of(tables).endswith(
        "rotary positions, frequencies, angles, sines and cosines rounded to bfloat16"
    )


def test_positions_that_are_wrong_far_out_alone_are_told() -> None:
    """In bfloat16 whole numbers end at 256: weights of so many keys are not read."""

    def tables(at: Tensor, size: int) -> tuple[Tensor, Tensor]:
        angles = at.bfloat16().float()[:, None] * frequencies(size)
        return angles.cos(), angles.sin()

    sizes = {"query_length": 300, "key_length": 300, "head_size": 8, "value_head_size": 8}
    assert text_of(tables, problem(**sizes, values="normal")).endswith(
        "rotary positions rounded to bfloat16"
    )


def test_keys_that_are_turned_for_the_cache_alone_are_told() -> None:
    """The call that brings new keys attends them as they come."""

    def turned(heads: Tensor, at: Tensor) -> Tensor:
        size = heads.shape[-1] // 2 * 2
        one, two, rest = heads.split([size // 2, size // 2, heads.shape[-1] - size], -1)
        angles = at[:, None] * frequencies(heads.shape[-1])
        cosine, sine = angles.cos(), angles.sin()
        return torch.cat([one * cosine - two * sine, two * cosine + one * sine, rest], -1)

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        past_key: Tensor | None = None,
        past_value: Tensor | None = None,
    ) -> Tensor:
        past = 0 if past_key is None else past_key.shape[2]
        if past_key is not None and past_value is not None:
            key, value = torch.cat([past_key, key], 2), torch.cat([past_value, value], 2)
        places = torch.arange(key.shape[2])
        left = (places >= past) & (past > 0)
        query = turned(query, places[-1] + 1 - query.shape[2] + torch.arange(query.shape[2]))
        key = torch.where(left[:, None], key, turned(key, places))
        return (query @ key.mT / math.sqrt(query.shape[-1])).softmax(-1) @ value

    promises = {"semantics": conformance.Semantics(rotary="halves"), "features": ["kv_cache"]}
    (entry,) = diagnose(Subject(core(attend, **{**BARE_FLOAT32, **promises}), "float32"))
    assert entry["name"] == "logits: cached keys that are turned, and new ones that are not"
