"""Queries and keys that are normalised or turned otherwise than declared are told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
import torch
from examples import core, problem
from torch import Tensor

from candidates.broken.rotary_tables import (
    LengthsOfOne,
    OwnTables,
    RowsOneLater,
    SinesForCosines,
    TablesByHalves,
    TablesOfTheFirstItem,
)
from conformance import Semantics
from conformance._golden import golden
from conformance.clauses.subject import Subject
from conformance.declare.candidate import Candidate
from conformance.diagnosis.battery import answer_to
from conformance.diagnosis.stage_edits import fitting
from conformance.diagnosis.turned_edits import turned_edits

Turn = Callable[[Tensor, Tensor], Tensor]
HALVES: Final = Semantics(rotary="halves")


def said(prepare: Turn, point: Semantics = HALVES) -> list[str]:
    """The edits that make what a core answers whose queries and keys, at places, are prepared."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        places = torch.arange(key.shape[2])
        query = prepare(query.double(), places[-query.shape[2] :])
        scores = query @ prepare(key.double(), places).mT * query.shape[-1] ** -0.5
        return (scores.softmax(-1) @ value.double()).to(value.dtype)

    promises = {"masks": [], "causal": None, "features": [], "dtypes": ["float32"]}
    subject = Subject(core(attend, semantics=point, **promises), "float32")
    sizes = {"query_length": 6, "key_length": 9, "head_size": 8, "value_head_size": 8}
    drawn = problem(num_heads=2, num_kv_heads=2, batch=3, **sizes)
    answer = answer_to(subject, subject.inputs(drawn), drawn)
    assert answer is not None
    return [one.sentence for one in fitting(list(turned_edits()), answer)]


def turned(form: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Turn:
    """Halves turned by a form of the first channels, the second ones and their angles."""

    def turn(heads: Tensor, places: Tensor) -> Tensor:
        one, two = heads.chunk(2, -1)
        return form(one, two, places[:, None] * golden.rotary_frequencies(heads.shape[-1], HALVES))

    return turn


def at(change: Callable[[Tensor], Tensor]) -> Turn:
    """Halves turned rightly at other places."""
    return lambda heads, places: golden.rotate_heads(heads, change(places), HALVES)


def as_one_head(heads: Tensor, places: Tensor) -> Tensor:
    """Heads side by side turned as one."""
    wide = golden.rotate_heads(golden.merge_heads(heads)[:, None], places, HALVES)
    return golden.split_heads(wide[:, 0], heads.shape[1])


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (
            turned(
                lambda a, b, t: torch.cat(
                    [a * t.cos() + b * t.sin(), b * t.cos() + a * t.sin()], -1
                )
            ),
            "so that the sine is added in both channels of a pair, though one takes it off",
        ),
        (
            turned(lambda a, b, t: torch.cat([a * t.cos(), b * t.cos()], -1)),
            "so that the part with the sine is missing",
        ),
        (
            lambda heads, places: golden.rotate_heads(
                heads, places, HALVES.replace(rotary="interleaved")
            ),
            "by other pairs of channels",
        ),
        (at(lambda places: places % 5), "by positions that are counted modulo 5"),
        (at(lambda places: places.clamp_max(6)), "by positions that are no larger than 6"),
        (as_one_head, "as one wide head, before they are cut into heads"),
        (
            lambda heads, places: golden.rotate_heads(
                heads, places, HALVES.replace(rotary_fraction=0.5)
            ),
            "in half of the channels",
        ),
    ],
    ids=["signs", "no sine", "pairs", "modulo", "clamped", "wide", "fraction"],
)
def test_another_rotation_is_told(prepare: Turn, words: str) -> None:
    """By its form, its pairs, its positions, and the channels that it turns."""
    assert f"queries and keys are turned {words}" in said(prepare)


@pytest.mark.parametrize(
    ("norm", "words"),
    [
        (
            lambda t: t / (t.square().mean(-2, keepdim=True) + 1e-6).sqrt(),
            "divided by the root of their mean square over the tokens",
        ),
        (
            lambda t: t / (t.square().mean(-1, keepdim=True) + 1e-6),
            "divided by their mean square over the channels",
        ),
    ],
    ids=["tokens", "no root"],
)
def test_another_norm_is_told(norm: Callable[[Tensor], Tensor], words: str) -> None:
    """Along another axis than the channels, or by another power of their mean square."""
    point = Semantics(qk_norm="rms")
    assert f"queries and keys are {words}" in said(lambda heads, _places: norm(heads), point)


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (OwnTables, "by positions from zero on, whatever tables the call gives"),
        (SinesForCosines, "by tables whose cosines and sines are exchanged"),
        (LengthsOfOne, "by tables whose entries are made as long as one"),
        (TablesOfTheFirstItem, "by the tables of the first item"),
        (RowsOneLater, "by positions of the keys that are those of the token 1 behind"),
        (TablesByHalves, "with the frequency of index c // 2 in channel c, in the other pairs"),
    ],
)
def test_what_is_made_of_given_tables_is_told(mistake: Candidate, words: str) -> None:
    """Tables that are not read, or are read otherwise, by the words of the change."""
    subject = Subject(mistake, "float32")
    drawn = problem(num_heads=2, num_kv_heads=2, batch=3, query_length=6, key_length=6, seed=6)
    drawn = drawn.replace(geometry=drawn.geometry.replace(head_size=8, value_head_size=8))
    answer = answer_to(subject, subject.inputs(drawn), drawn)
    assert answer is not None
    told = [one.sentence for one in fitting(list(turned_edits()), answer)]
    assert f"queries and keys are turned {words}" in told
