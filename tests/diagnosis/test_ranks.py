"""Mistakes of candidates that span ranks are acted out in parts, and named."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import torch
from examples import CLAUSES, core, problem

from candidates.ranks.mistakes import MISTAKES, NAMES
from conformance import Ranks
from conformance.base.geometry import Geometry
from conformance.calls.ranks import spanning
from conformance.clauses.subject import Subject
from conformance.diagnosis.rank_mistakes import MISTAKES as NAMED
from conformance.diagnosis.rank_parts import Parts, RankMistake
from conformance.diagnosis.ranks import RankDiagnostician, acted_out, diagnostician
from conformance.identification.opening import resolve_one
from conformance.problems.inputs import Inputs

# One is named in every run: it costs seconds to start ranks.
EVERY_RUN = ("OwnPartTwice", "GradientOnTheFirstRankAlone")
NOTHING = RankMistake(name="none", sentence="nothing is wrong", fix="")


def loaded(place: str) -> Subject:
    """A candidate of ``candidates.ranks``, called on its ranks."""
    return Subject(spanning(resolve_one(f"candidates.ranks.{place}")[0]), "float32")


def parts(place: str, count: int, *, length: int = 12) -> Parts:
    """A causal call of as many queries as keys on some ranks."""
    subject = Subject(core(), "float32")
    drawn = problem(causal=True)
    sizes = drawn.geometry.replace(query_length=length, key_length=length)
    inputs: Inputs = subject.inputs(drawn.replace(geometry=Geometry(**vars(sizes))))
    ranks = Ranks(count, query=place, key=place, value=place, output=place)
    return Parts(subject, inputs, ranks, missing=False, late=None)


@pytest.mark.parametrize("place", ["sequence", "zigzag", "replicated"])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("length", [12, 11])
def test_the_golden_in_parts_is_the_golden(place: str, count: int, length: int) -> None:
    """Without a mistake every rank's part, merged of all blocks, is that of the golden answer."""
    call = parts(place, count, length=length)
    right = call.subject.golden(call.inputs).output
    for rank in range(count):
        torch.testing.assert_close(NOTHING.acted(call, rank), right)


@pytest.mark.parametrize(
    "name", ["part-mask-without-offset", "own-part-alone", "stale-ring-buffer"]
)
def test_a_mistake_changes_the_answer_on_two_ranks_and_not_on_one(name: str) -> None:
    """What is wrong between parts is right where there is one part."""
    for mistake in (one for one in NAMED if one.name == name):
        single, several = parts("sequence", 1), parts("sequence", 2)
        right = single.subject.golden(single.inputs).output
        torch.testing.assert_close(acted_out(mistake, single, 0).output, right)
        changed = [acted_out(mistake, several, rank).output for rank in range(2)]
        assert any(not torch.allclose(each, right, atol=1e-3) for each in changed)


def test_texts_are_whole() -> None:
    """Each entry has a name, a sentence and what to do; names differ from those of one process."""
    assert all(one.name and one.sentence and one.fix for one in NAMED)
    assert set(NAMES.values()) <= {one.name for one in NAMED}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in EVERY_RUN else pytest.mark.nightly)
        for name in MISTAKES
    ],
)
def test_a_mistake_is_named(name: str) -> None:
    """The diagnosis of each mistaken candidate is the name that its file declares, and no other."""
    entries = diagnostician(loaded(f"mistakes:{name}")).explain()
    assert [entry["name"] for entry in entries] == [NAMES[name]]
    assert entries[0]["confidence"] == 1.0


@pytest.mark.nightly
@pytest.mark.parametrize(
    "place",
    [
        "ring:ring_attention",
        "ring:zigzag_ring",
        "split_keys:split_keys",
        "all_gather:all_gather_attention",
        "ulysses:all_to_all_attention",
        "tensor_parallel:tensor_parallel_layer",
        "tensor_parallel:own_heads",
        "torch_parallel:parallelized_module",
    ],
)
def test_a_correct_candidate_has_no_mistake(place: str) -> None:
    """Nothing of what is observed of a correct candidate is wrong, and nothing is named."""
    named = diagnostician(loaded(place))
    assert isinstance(named, RankDiagnostician)
    assert named.rank_mistakes == []
    assert named.explain() == []


OTHER = """
    from candidates.ranks.ring import PROMISES, Ring, on_ring
    import conformance

    class Scaled(Ring):
        def attend(self, call, query, key, value):
            output, lse = super().attend(call, query * 1.25, key, value)
            return output, lse

    scaled = conformance.core(name="scaled", ranks=on_ring("sequence"), **PROMISES)(Scaled())
"""


@pytest.mark.nightly
def test_a_mistake_of_one_process_has_no_name_of_ranks(tmp_path: Path) -> None:
    """A scale that is off on every rank is no mistake between parts."""
    file = tmp_path / "scaled.py"
    file.write_text(textwrap.dedent(OTHER), encoding="utf-8")
    subject = Subject(spanning(resolve_one(f"{file}:scaled")[0]), "float32")
    named = diagnostician(subject)
    assert isinstance(named, RankDiagnostician)
    assert named.rank_mistakes == []


@pytest.mark.nightly
def test_a_failing_clause_has_the_name() -> None:
    """What a clause about ranks shows is named, although the plain answer is right."""
    subject = loaded("mistakes:TwoRanksWrittenDown")
    shown = problem(causal=False)
    (entry,) = diagnostician(subject).explain(CLAUSES["ranks.any-count"], shown)
    assert entry["name"] == "number-of-ranks-written-down"
