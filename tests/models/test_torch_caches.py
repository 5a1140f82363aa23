"""Whole torch models with a cache of their own: found by trial, and asked call by call."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from whole_models import not_passed, results

import conformance
from candidates.models.cached import FirstTokenLost, KeepingDecoder, PlacesNotShifted
from candidates.models.transformer import Encoder, Shape
from conformance import UsageError
from conformance.models.whole_model import WholeModel

CLAUSES = {"model.cache-equals-full", "model.cache-in-order"}


class CountsFromZero(PlacesNotShifted, KeepingDecoder):
    """Positions are counted from zero in each call with a cache."""


class Renamed(nn.Module):
    """The cache goes by other names, and is a tuple: the second of two answers."""

    def __init__(self) -> None:
        super().__init__()
        self.model = KeepingDecoder()

    def forward(
        self, ids: Tensor, mask: Tensor, kv_cache: tuple[Tensor, ...] | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Ids ``[B, L]`` and a mask ``[B, P + L]``: ``[B, L, E]``, and the heads so far."""
        past = None if kv_cache is None else self.model.kept(kv_cache)
        answer, kept = self.model(ids, mask, past, use_cache=True)
        return answer, tuple(kept.parts)


def whole(module: nn.Module, cache: conformance.Cache | None = None) -> conformance.Candidate:
    """A module as a whole model, with random weights that are the same in every run."""
    return conformance.model(module, cache=cache)[0]


def seeded(made: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return made()


def model_of(candidate: conformance.Candidate) -> WholeModel:
    model = candidate.function
    assert isinstance(model, WholeModel)
    return model


@pytest.mark.parametrize("made", [KeepingDecoder, Renamed])
def test_a_cache_is_found_by_what_calls_with_it_answer(made: type[nn.Module]) -> None:
    """Whatever its parameter is called and its answers are: later tokens are those of one call."""
    candidate = whole(seeded(made))
    model = model_of(candidate)
    call = model.call(3, (6, 6), None, 1)
    answers = model.run(call)
    behind = model.run(model.in_turn(call, [2, 3]))
    (name,) = [name for name, letters in model.outputs.items() if letters[:2] == "BP"]
    np.testing.assert_allclose(behind[name], answers[name][:, 3:], atol=1e-5)
    assert not [warning for warning in candidate.warnings if "cache" in warning]


def test_right_caches_pass_and_both_clauses_are_asked() -> None:
    """Nothing of a right decoder fails, and its cache is asked in parts and in other orders."""
    found = results(whole(seeded(KeepingDecoder)))
    assert not_passed(found) == {}
    assert {one.id for one in found if one.status == "passed"} >= CLAUSES


def test_a_wrong_cache_that_no_trial_finds_is_told_and_fails_where_it_is_declared() -> None:
    """A guess never fails: undeclared it is a warning with the line, declared it is judged."""
    module = seeded(CountsFromZero)
    (said,) = [warning for warning in whole(module).warnings if "cache" in warning]
    assert said.startswith("not judged: its cache (past): no trial")
    declared = conformance.Cache(parameter="past", returned=1, options={"use_cache": True})
    assert "model.cache-equals-full" in not_passed(results(whole(module, declared)))


def test_the_attention_that_answers_otherwise_is_named() -> None:
    """What a failure of the cache says names the first attention whose answer is another."""
    said = not_passed(results(whole(seeded(FirstTokenLost))))["model.cache-equals-full"]
    assert "the first that answers otherwise is attention #0" in said


def test_a_model_that_sees_later_tokens_keeps_no_cache() -> None:
    """An encoder is asked for none, and nothing is said of one."""
    candidate = whole(seeded(lambda: Encoder(Shape())))
    assert model_of(candidate).kept is None
    assert not [warning for warning in candidate.warnings if "cache" in warning]


def test_what_is_no_cache_is_refused() -> None:
    """A cache that is no conformance.Cache is a sentence."""
    with pytest.raises(UsageError, match=r"cache is \{\}: give a conformance\.Cache"):
        conformance.model(KeepingDecoder(), cache={})  # type: ignore[arg-type]  # wrong on purpose
