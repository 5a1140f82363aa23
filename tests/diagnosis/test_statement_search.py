"""What is stated under conditions names those that decide, with their numbers."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
from examples import BARE_FLOAT32, core, plan, problem
from torch import Tensor

from conformance.clauses.subject import Subject
from conformance.diagnosis import Diagnostician, diagnose
from conformance.diagnosis.battery import answer_from
from conformance.diagnosis.mistakes import named_mistakes
from conformance.diagnosis.statement_reader import StatementReader
from conformance.diagnosis.statement_search import changes_answer, explains


def attend(query: Tensor, key: Tensor, value: Tensor, scale: float | Tensor) -> Tensor:
    """Attention with a scale, a number or one for each query."""
    return torch.softmax(query @ key.mT * scale, dim=-1) @ value


def test_a_mistake_made_wherever_it_can_be_is_named_before_anything_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keys in the place of values where both are as wide: the catalogue says it, not a reading."""

    def unexpected(*_arguments: Any) -> None:
        pytest.fail("an answer was read")

    def keys_for_values(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        used = key if key.shape == value.shape else value
        return attend(query, key, used, query.shape[-1] ** -0.5)

    monkeypatch.setattr(StatementReader, "statements", unexpected)
    (entry,) = diagnose(Subject(core(keys_for_values, **BARE_FLOAT32), "float32"))
    assert entry["name"] == "key-used-for-value"
    assert "(only where values are as wide as keys)" in entry["text"]


def test_a_row_that_is_no_number_is_another_answer() -> None:
    """NaN in place of zeros is a change, and NaN in place of NaN is none."""
    (nan,) = (one for one in named_mistakes() if one.name == "empty-rows-nan")
    changes = {}
    for rule in ("zeros", "nan"):
        subject = Subject(core(masks=["keep"], empty_rows=rule), "float32")
        inputs = subject.inputs(problem(mask=plan("empty-rows")))
        changes[rule] = changes_answer(subject, (nan,), inputs)
    assert changes == {"zeros": True, "nan": False}


def test_one_query_broadcast_against_masks_is_no_other_mistake() -> None:
    """Queries in place of keys meet a mask of many keys where there is one of them."""

    def queries_for_keys(
        query: Tensor, key: Tensor, value: Tensor, *, keep: Tensor | None = None
    ) -> Tensor:
        logits = query @ query.mT * query.shape[-1] ** -0.5
        table = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool) if keep is None else keep
        return logits.masked_fill(~table, -torch.inf).softmax(-1).nan_to_num(0.0) @ value

    promises = {**BARE_FLOAT32, "masks": ["keep"], "empty_rows": "zeros"}
    (entry,) = diagnose(Subject(core(queries_for_keys, **promises), "float32"))
    assert entry["name"] == "query-used-for-key"


def test_one_row_broadcast_by_causality_is_no_other_mistake() -> None:
    """Query and key exchanged: a single key is one row, which a mask of five queries repeats."""
    promises = {**BARE_FLOAT32, "causal": "bottom-right", "empty_rows": "zeros"}
    subject = Subject(core(**promises), "float32")
    (swapped,) = (one for one in named_mistakes() if one.name == "query-and-key-swapped")
    one, two = (
        subject.inputs(problem(query_length=5, key_length=keys, causal=True)) for keys in (1, 2)
    )
    for asked, explained in ((one, True), (two, False)):
        answer = answer_from(subject, asked, torch.full_like(subject.golden(asked).output, 9.0))
        assert answer is not None
        assert explains(subject, (swapped,), answer) is explained


def test_reading_ends_when_whoever_waits_gives_up() -> None:
    """Before the statements of each answer are tried: they ask for no call."""

    class GivenUpError(Exception):
        pass

    def halved(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        answer: Tensor = (query @ key.mT * 0.37).softmax(-1) @ value * 0.83
        return answer

    known = Diagnostician(Subject(core(halved, **BARE_FLOAT32), "float32"), [])
    told = patch("conformance.diagnosis.statement_search.check_time", side_effect=GivenUpError)
    with told, pytest.raises(GivenUpError):
        _ = known.explanations


def test_rows_past_the_tiles_of_one_size_are_told_from_those_of_another() -> None:
    """Tiles of 4 and of 8 end alike at many numbers of queries: one is asked at which none do."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1) @ value
        whole = query.shape[2] // 8 * 8 or query.shape[2]
        return torch.cat([output[:, :, :whole], torch.zeros_like(output[:, :, whole:])], 2)

    (entry,) = diagnose(Subject(core(attend, **BARE_FLOAT32), "float32"))
    assert "zero for queries past whole tiles of 8, where there is one" in entry["text"]


def test_right_rows_speak_against_a_mistake_that_takes_their_keys() -> None:
    """Also where rows without keys may return anything: the last query alone is one of several."""

    def behind_tiles(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        answer = attend(query, key, value, query.shape[-1] ** -0.5)
        answer[:, :, query.shape[2] // 16 * 16 or query.shape[2] :] = 0.0
        return answer

    declared = {**BARE_FLOAT32, "empty_rows": "any"}
    (entry,) = diagnose(Subject(core(behind_tiles, **declared), "float32"))
    assert "zero for queries past whole tiles of 16, where there is one" in entry["text"]
