from __future__ import annotations

from typing import Any

import pytest
import torch
from examples import core, failing, layer, plan, problem, run_clause, try_on
from torch import Tensor

import conformance
from candidates.eager import Answer, Call, EagerCore, EagerLayer
from conformance.clauses import caches
from conformance.clauses.caches import ragged, with_cache
from conformance.clauses.registry import all_clauses
from conformance.clauses.subject import Subject

SLUGS = [clause.id for clause in all_clauses() if clause.family == "cache"]
FEATURES = ["gqa", "kv_cache"]
PROMISES: dict[str, Any] = {"features": FEATURES, "masks": ["keep"]}


class OwnTokens(EagerLayer):
    """The eager layer on one input."""

    def __call__(self, x: Tensor, *_none: Tensor, **options: Any) -> Answer:
        """Attend to the tokens themselves and what is cached."""
        return super().__call__(x, x, x, **options)


DECODER = conformance.layer(
    name="decoder",
    masks=["keep", "lengths"],
    causal="bottom-right",
    features=["kv_cache"],
    inputs="self",
)(OwnTokens)


def test_seven_clauses() -> None:
    """Those that the issue names, and what a careful user would miss."""
    assert [slug.partition(".")[2] for slug in SLUGS] == [
        "golden",
        "position-offset",
        "untouched-tail",
        "no-memory",
        "empty-past",
        "in-turn",
        "decode-equals-full",
    ]


@pytest.mark.parametrize("slug", [slug for slug in SLUGS if slug != "cache.in-turn"])
@pytest.mark.parametrize(
    "candidate", [core(**PROMISES), layer(), DECODER], ids=["core", "layer", "decoder"]
)
def test_correct_caches_pass(slug: str, candidate: conformance.Candidate) -> None:
    """Cores, layers that cross and layers that attend to themselves pass, and examples bind."""
    result = run_clause(candidate, slug)
    assert (result.status, result.binding > 0) == ("passed", True)


def test_without_a_cache_little_applies() -> None:
    """A core without a cache gets the last queries with all keys, and slots by length."""
    plain = core(features=[])
    applied = [slug for slug in SLUGS if run_clause(plain, slug).status == "passed"]
    assert applied == ["cache.untouched-tail", "cache.decode-equals-full"]
    neither = core(features=[], causal="top-left", masks=["keep"])
    reasons = {run_clause(neither, slug).reason for slug in SLUGS}
    assert any("no cache is declared, nor" in reason for reason in reasons)


class FirstSlotLost(EagerCore):
    """Of more than one new token, the first is not put behind the cache."""

    def join_cache(self, call: Call) -> Call:
        """The cache and all but the first of the new tokens; masks lose their column."""
        past, call = call.past_key, super().join_cache(call)
        if past is None or call.key_length - past.shape[2] == 1:
            return call
        key, value = call.key.clone(), call.value.clone()
        key[:, :, past.shape[2]] = key[:, :, past.shape[2] - 1]
        value[:, :, past.shape[2]] = value[:, :, past.shape[2] - 1]
        return call.replace(key=key, value=value)


def test_wrong_only_for_chunks_is_detected() -> None:
    """A kernel that is right token by token and wrong for more of them fails decoding."""
    assert failing(core(FirstSlotLost(), **PROMISES), "cache.decode-equals-full")


class Growing(EagerCore):
    """Keeps its keys, and puts them before the next cache of the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[tuple[int, ...], Tensor] = {}

    def join_cache(self, call: Call) -> Call:
        """The cache of the call before, where the shapes agree."""
        if call.past_key is None:
            return call
        before = self.kept.get(tuple(call.past_key.shape), call.past_key)
        self.kept[tuple(call.past_key.shape)] = call.past_key.clone()
        return super().join_cache(call.replace(past_key=before))


def test_stale_caches_are_detected() -> None:
    """To use the cache of an earlier call fails."""
    assert failing(core(Growing(), **PROMISES), "cache.no-memory")


def test_writing_into_the_cache_is_reported() -> None:
    """Writing into the cache is reported as that, not as a wrong answer."""

    class Writing(EagerCore):
        def join_cache(self, call: Call) -> Call:
            joined = super().join_cache(call)
            if call.past_value is not None:
                call.past_value.zero_()
            return joined

    finding = try_on(core(Writing(), **PROMISES), "cache.untouched-tail", problem())
    assert finding.violation is not None
    assert finding.violation.kind == "mutated"


def test_ragged_items_are_compared_with_themselves_alone() -> None:
    """Caches of several lengths bind for a core with masks of items, with the flag and without."""
    subject = Subject(core(**PROMISES), "float32")
    for causal in (False, True):
        findings = [
            ragged(subject, problem(query_length=7, seed=seed, causal=causal))
            for seed in range(2, 20, 3)
        ]
        assert all(finding is not None and finding.violation is None for finding in findings)
        assert any(finding is not None and finding.binding for finding in findings)


def test_an_item_alone_gets_an_equal_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever slots are left out, the golden answers of both calls are equal.

    Queries before the end of the cache would see other tokens: their distance would be allowed.
    """
    calls = []
    monkeypatch.setattr(
        caches, "same_answer", lambda *positional, **named: calls.append((positional, named))
    )
    subject = Subject(core(**PROMISES), "float32")
    for seed in range(12):
        ragged(subject, problem(causal=True, window=(1, 0), seed=seed, query_length=7))
    for (_, first, second, _), named in calls:
        first_golden, second_golden = subject.golden(first), subject.golden(second)
        assert torch.allclose(
            named["view"](first_golden.output),
            second_golden.output,
            rtol=0.0,
            atol=float(second_golden.bound.min()),
        )
    assert any(first.causal for (_, first, _, _), _ in calls)


def test_no_mask_of_items_no_ragged_caches() -> None:
    """Without a mask for each item no call has caches of several lengths."""
    subject = Subject(core(masks=["keep"], mask_shapes=["QK"], features=FEATURES), "float32")
    assert ragged(subject, problem(seed=2, mask=plan(shape="QK"))) is None


def test_top_left_candidates_are_called_without_places() -> None:
    """Where the diagonal starts at the first key, flag and window are left out with a cache."""
    top_left = core(EagerCore(causal="top-left"), causal="top-left", **PROMISES)
    held = with_cache(Subject(top_left, "float32"), problem(causal=True, window=(1, 1)))
    assert (held.causal, held.window, held.past > 0) == (False, None, True)
    assert (
        "nor" in run_clause(core(features=[], causal="top-left"), "cache.decode-equals-full").reason
    )


def test_golden_of_a_cache_is_that_of_all_keys() -> None:
    """The answer that is expected is the one without a cache."""
    subject = Subject(core(**PROMISES), "float32")
    whole, held = subject.inputs(problem(seed=4)), with_cache(subject, problem(seed=4))
    assert held.past == 1 + 4 % 6
    assert torch.equal(subject.oracle.output(whole), subject.oracle.output(held))
