"""bias.alibi: any number of heads."""

from __future__ import annotations

import pytest
from examples import CLAUSES, core, failing, run_clause

from candidates.broken._prepared import Prepared
from candidates.broken.linear_biases import OneSequenceOfSlopes
from conformance import Semantics
from conformance.clauses.subject import Subject
from conformance.problems.problem import problem_from_json
from conformance.running.shrinking.smallest import smallest_failure


class Linear(Prepared):
    """Biases by distance, in torch's own dtype of the scores."""

    linear = True


def test_without_linear_biases_it_does_not_apply() -> None:
    """The reason is that none are declared."""
    assert run_clause(core(), "bias.alibi").reason == "its semantics declares no linear biases"


@pytest.mark.parametrize("heads", [3, 5, 6, 7, 12])
def test_other_numbers_of_heads_are_tried(heads: int) -> None:
    """One sequence of slopes fails where it is wrong: the heads are no power of two."""
    promises = {
        "masks": [],
        "features": [],
        "semantics": Semantics(alibi=True),
        "geometry": {"num_heads": heads},
    }
    wrong = core(OneSequenceOfSlopes.function, **promises)
    assert failing(wrong, "bias.alibi")
    assert run_clause(core(Linear(), **promises), "bias.alibi").status == "passed"


def test_powers_of_two_hide_it() -> None:
    """The same slopes are right for four heads."""
    promises = {"masks": [], "features": [], "semantics": Semantics(alibi=True)}
    four = core(OneSequenceOfSlopes.function, geometry={"num_heads": 4}, **promises)
    assert run_clause(four, "bias.alibi").status == "passed"


def test_the_input_that_is_shown_is_the_one_that_was_asked() -> None:
    """One sequence of slopes shows with three heads or more: the failing input has as many."""
    promises = {"masks": [], "features": [], "semantics": Semantics(alibi=True)}
    wrong = core(OneSequenceOfSlopes.function, **promises)
    result = run_clause(wrong, "bias.alibi")
    assert result.violation is not None
    assert result.counterexample is not None
    smallest = smallest_failure(
        CLAUSES["bias.alibi"],
        Subject(wrong, "float32"),
        problem_from_json(result.counterexample["problem"]),
        result.violation,
        tries=60,
    )
    sizes = smallest.problem.geometry
    assert smallest.recording.calls[0].inputs.geometry == sizes
    assert (sizes.num_heads, sizes.query_length, sizes.head_size) == (3, 1, 1)
