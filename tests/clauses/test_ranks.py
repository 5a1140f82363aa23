"""ranks.*: each known mistake of attentions that span ranks is caught, and correct ones pass."""

from __future__ import annotations

import textwrap
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from examples import SMALL

from candidates.ranks.mistakes import MISTAKES
from conformance.calls.ranks import spanning
from conformance.declare.candidate import Candidate
from conformance.identification.opening import resolve_one
from conformance.running.runner import CandidateRun

CORRECT = {
    "ring": "ring_attention",
    "split_keys": "split_keys",
    "tensor_parallel": "tensor_parallel_layer",
    "all_gather": "all_gather_attention",
    "ulysses": "all_to_all_attention",
}
# One for each clause of the family is caught in every run, and each of the others at night.
EVERY_RUN = ("ring", "split_keys")
OF_THE_FAMILY = [name for name, primary in MISTAKES.items() if primary.startswith("ranks.")]


def loaded(place: str) -> Candidate:
    """A candidate of ``candidates.ranks``, called on its ranks."""
    return spanning(resolve_one(place)[0])


def statuses(candidate: Candidate, *clauses: str) -> dict[str, str]:
    """The status of each clause."""
    run = CandidateRun(candidate, profile=SMALL, only=clauses, dtypes=("float32",), explain=False)
    return {planned.id: run.run(planned).status for planned in run.planned()}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in OF_THE_FAMILY else pytest.mark.nightly)
        for name in MISTAKES
    ],
)
def test_a_mistake_is_caught(name: str) -> None:
    """The clause that a mistake names fails for it."""
    result = statuses(loaded(f"candidates.ranks.mistakes:{name}"), MISTAKES[name])
    assert result == {MISTAKES[name]: "failed"}


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(file, marks=() if file in EVERY_RUN else pytest.mark.nightly)
        for file in CORRECT
    ],
)
def test_correct_ones_pass(file: str) -> None:
    """No clause of the family fails a correct candidate, at one, two, three and four ranks."""
    result = statuses(loaded(f"candidates.ranks.{file}:{CORRECT[file]}"), "ranks.*")
    assert set(result.values()) <= {"passed", "not-applicable"}
    assert result["ranks.any-count"] == result["ranks.waits"] == result["ranks.dies"] == "passed"


SUMMANDS = """
    from torch.distributed.tensor import Partial
    from candidates.ranks.tensor_parallel import TensorParallel
    from torch.nn.functional import linear
    import torch.distributed as dist
    import conformance

    class Summands(TensorParallel):
        def projected(self, mixed, weights):
            part = mixed if weights.o is None else linear(mixed, weights.o)
            return part if weights.o_bias is None or dist.get_rank() else part + weights.o_bias

    summands = conformance.layer(
        name="summands", causal="bottom-right", empty_rows="zeros", features=["gqa"],
        without=["gradients"], ranks=conformance.Ranks(2, weights="heads", output=Partial()),
    )(Summands())
"""


def test_summands_need_not_agree(tmp_path: Path) -> None:
    """An answer that is the sum over the ranks is right although no two ranks return the same."""
    file = tmp_path / "summands.py"
    file.write_text(textwrap.dedent(SUMMANDS), encoding="utf-8")
    result = statuses(loaded(f"{file}:summands"), "ranks.agree", "numerics.golden")
    assert result == {"ranks.agree": "not-applicable", "numerics.golden": "passed"}


FUNCTIONAL = """
    import conformance
    import torch
    from candidates.ranks.split_keys import PARTS
    from torch.distributed import _functional_collectives as functional, group

    @conformance.core(ranks=PARTS, without=["gradients"])
    def sums(query, key, value):
        weights = (query @ key.mT / query.shape[-1] ** 0.5).exp()
        parts = torch.cat([weights @ value, weights.sum(-1, keepdim=True)], -1)
        whole = functional.all_reduce(parts, "sum", group.WORLD)
        return whole[..., :-1] / whole[..., -1:]
"""


def test_what_cannot_be_late_is_not_judged_by_it(tmp_path: Path) -> None:
    """Functional collectives cannot be delayed: the clause does not apply to them alone."""
    file = tmp_path / "functional.py"
    file.write_text(textwrap.dedent(FUNCTIONAL), encoding="utf-8")
    assert statuses(loaded(f"{file}:sums"), "ranks.waits") == {"ranks.waits": "not-applicable"}


# The clauses, as globs, that each mistake may fail: what it is primary for, and what follows.
_GRADIENTS = ("gradients.golden", "gradients.options", "gradients.causal", "gradients.any-length")
_CAUSAL = ("mask.*", "numerics.options", "numerics.odd-scale", "numerics.any-length", *_GRADIENTS)
# Answers are wrong on most problems: nothing about shapes, state, lateness or loss may fail.
_VALUES = ("numerics.*", "mask.*", "equivariance.*", "groups.*", "mixed.*", *_GRADIENTS)
_MORE = ("cache.decode-equals-full", "ranks.any-count")
# What is not finite differs from itself.
_NOT_FINITE = ("shape.strided", "shape.expanded", "shape.bounds", "state.*")
MAY_FAIL = {
    "LocalCausalMask": (*_CAUSAL, *_MORE, "ranks.no-leak"),
    "MergedWithoutMaximum": (*_VALUES, *_MORE, *_NOT_FINITE),
    "SumsInHalfPrecision": (*_VALUES, *_MORE, "ranks.uneven"),
    "ZigzagUndoneWrongly": (*_CAUSAL, *_MORE),
    "NoSumBehindTheOutput": (*_VALUES, *_MORE, "ranks.agree", "ranks.dies"),
    "BiasOnEveryRank": (*_VALUES, *_MORE, "shape.empty-key"),
    "WrongSharedHeads": (*_VALUES, *_MORE),
    "GradientsNotSentHome": _GRADIENTS,
    "StaleBuffer": (*_VALUES, *_MORE),
    "PaddedLastPart": (*_VALUES, *_MORE, "ranks.uneven", "ranks.empty-part"),
    "SumOnTheFirstRankAlone": (*_GRADIENTS, "ranks.agree"),
    "GradientOnTheFirstRankAlone": ("ranks.agree",),
    "TwoRanksWrittenDown": ("ranks.any-count",),
    "NoMaximumOfNothing": ("[!r]*", "ranks.any-count", "ranks.empty-part"),
    "OwnPartTwice": (*_VALUES, *_MORE, "ranks.uneven", "ranks.order"),
    "LaterPartsAreWeighed": ("mask.*", "mixed.undeclared-inputs", "ranks.no-leak"),
    "DoesNotWait": ("*",),  # on a busy machine any message may come later than it waits
    "SwallowedException": ("ranks.dies",),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_fails_only_what_it_should(name: str) -> None:
    """Of all clauses a mistake fails its primary one and direct consequences; none is an error."""
    result = statuses(loaded(f"candidates.ranks.mistakes:{name}"), "*")
    failed = {clause for clause, status in result.items() if status == "failed"}
    wide = {clause for clause in failed if not any(fnmatchcase(clause, c) for c in MAY_FAIL[name])}
    assert MISTAKES[name] in failed
    assert not wide
    assert set(result.values()) <= {"passed", "failed", "not-applicable", "untestable"}


def test_what_makes_no_call_wrong_fails_its_clause_alone() -> None:
    """A mistake that shows only where a rank is lost, or late, fails nothing else of the family."""
    for name in ("SwallowedException", "SumOnTheFirstRankAlone"):
        result = statuses(loaded(f"candidates.ranks.mistakes:{name}"), "ranks.*")
        failed = [clause for clause, status in result.items() if status == "failed"]
        assert failed == [MISTAKES[name]]


def test_a_candidate_of_one_process_is_not_judged_by_them() -> None:
    """The family does not apply where no ranks are declared."""
    result = statuses(resolve_one("candidates.eager:eager_core")[0], "ranks.*")
    assert set(result.values()) == {"not-applicable"}
    assert len(result) == 8
