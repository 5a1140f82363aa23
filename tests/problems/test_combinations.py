"""Combinations of what a candidate declares: what is claimed as covered is what was asked."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from declared import CANDIDATES
from examples import CLAUSES, SMALL, core
from torch import Tensor

from candidates.eager import Answer, Call, EagerCore
from conformance.base.geometry import Geometry
from conformance.declare.candidate import Candidate
from conformance.problems.combinations import Combinations, combinations
from conformance.running.runner import CandidateRun

SPACE = CLAUSES["numerics.options"].space


class Heard(EagerCore):
    """A right core that writes down what it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[dict[str, Any]] = []

    def attend(self, call: Call) -> Answer:
        """Keep what can be seen of the call from outside."""
        given = [name for name in ("keep", "bias", "lengths") if getattr(call, name) is not None]
        self.calls.append(
            {
                "form": given[0] if given else "none",
                "shape": None if not given else tuple(getattr(call, given[0]).shape),
                "causal": "yes" if call.causal else "no",
                "scale": "none" if call.scale is None else f"{call.scale:g}",
                "weights returned": "yes" if call.return_weights else "no",
                "batch": str(call.query.shape[0]),
                "queries": str(call.query.shape[2]),
                "keys": str(call.key.shape[2]),
                "head size": f"{call.query.shape[3]}/{call.value.shape[3]}",
                "dense": call.query.is_contiguous(),
                "tensors": tensors(call.query, call.key, call.value),
            }
        )
        return super().attend(call)


def tensors(query: Tensor, key: Tensor, value: Tensor) -> str:
    """Which inputs are one tensor."""
    if query is key and key is value:
        return "one"
    return "key is value" if key is value else "three"


def test_what_is_claimed_was_asked() -> None:
    """Of a run, each three values that are claimed as covered were in one call of the candidate.

    The call itself says so: sizes, strides and objects of the tensors, and the keywords.
    """
    heard = Heard()
    declared = core(
        heard,
        masks=["keep", "lengths"],
        mask_shapes=["BHQK", "11QK", "B"],
        features=["scale", "weights"],
    )
    profile = dataclasses.replace(SMALL, strength=3, examples=1)
    run = CandidateRun(declared, profile=profile, only=("numerics.options",), dtypes=("float32",))
    (planned,) = run.planned()
    coverage = run.run(planned).coverage
    assert coverage is not None
    assert coverage["strength"] == 3
    assert coverage["covered"] == coverage["combinations"] > 1000
    model = combinations(declared, SPACE, dtype="float32", strength=3)
    seen = ["causal", "scale", "batch", "queries", "keys", "head size", "weights returned"]
    seen.append("tensors")
    names = [parameter.name for parameter in model.model.parameters]
    for some in itertools.combinations([name for name in seen if name in names], 3):
        places = [names.index(name) for name in some]
        claimed = {tuple(row[place] for place in places) for row in model.covering.rows}
        asked = {tuple(call[name] for name in some) for call in heard.calls}
        assert claimed <= asked
    shapes = {(call["form"], call["dense"], len(call["shape"] or ())) for call in heard.calls}
    assert shapes >= {("keep", False, 4), ("lengths", False, 1), ("none", False, 0)}


@pytest.mark.parametrize("name", CANDIDATES)
def test_rows_are_in_the_space_and_all_different(name: str) -> None:
    """Nothing is thrown away afterwards: what there is no room for is told before."""
    candidate = CANDIDATES[name]
    for slug in ("numerics.options", "gradients.options"):
        space = CLAUSES[slug].space
        if candidate.kind not in space.kinds:
            continue
        made = combinations(candidate, space, dtype="float32")
        assert all(space.admits(problem, candidate) for problem in made.problems)
        assert len(set(made.problems)) == len(made.problems) == len(made.covering.rows)
        assert sum(made.covering.fresh) == made.covering.combinations
        assert sizes_told(made) == sizes_made(made)


def sizes_told(made: Combinations) -> list[tuple[str, ...]]:
    """The lengths and batches that the rows name."""
    names = [parameter.name for parameter in made.model.parameters]
    chosen = [name for name in ("batch", "queries", "keys") if name in names]
    return [tuple(row[names.index(name)] for name in chosen) for row in made.covering.rows]


def sizes_made(made: Combinations) -> list[tuple[str, ...]]:
    """Those that the problems have."""
    fields = {"batch": "batch", "queries": "query_length", "keys": "key_length"}
    names = [parameter.name for parameter in made.model.parameters]
    chosen = [fields[name] for name in fields if name in names]
    return [
        tuple(str(getattr(problem.geometry, field)) for field in chosen)
        for problem in made.problems
    ]


def no_more_keys(geometry: Geometry) -> Geometry:
    """Never more keys than queries."""
    return geometry.replace(key_length=min(geometry.key_length, geometry.query_length))


def count(candidate: Candidate, **changes: Any) -> dict[str, int]:
    """How many combinations of three are impossible, by the reason."""
    space = dataclasses.replace(SPACE, **changes)
    return dict(combinations(candidate, space, dtype="float32", strength=3).covering.impossible)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda: core(features=["kv_cache"], causal="top-left"), "first cached key"),
        (lambda: core(empty_rows="any", causal="bottom-right"), "queries that would have no key"),
        (lambda: core(geometry=no_more_keys), "no such sizes together"),
        (lambda: core(masks=["keep", "lengths"]), "shapes of its own"),
    ],
)
def test_what_cannot_meet_is_told(made: Callable[[], Candidate], reason: str) -> None:
    """Each reason follows from the declaration."""
    assert any(reason in reasons for reasons in count(made()))
