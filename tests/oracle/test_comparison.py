from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conformance.base.results import ClauseResult, result_from_json
from conformance.oracle.comparison import (
    SPOKEN_STAGES,
    WEIGHT_AXES,
    Comparison,
    compare,
    disagreement,
    moves,
)
from conformance.tolerance.contract import STAGES

NAN, INF = math.nan, math.inf


def row(*values: float) -> Tensor:
    """A vector in float64."""
    return torch.tensor(values, dtype=torch.float64)


def test_answer_within_the_bound_agrees() -> None:
    """An error below its bound is no violation, and the margin is the largest ratio."""
    agreement = compare(row(1.0, 2.5), row(1.0, 2.0), row(1.0, 1.0))
    assert agreement.violation is None
    assert agreement.margin == 0.5


def test_answer_at_the_bound_agrees() -> None:
    """The bound itself is allowed."""
    agreement = compare(row(2.0), row(1.0), row(1.0))
    assert agreement.margin == 1.0
    assert agreement.violation is None


def test_worst_element_is_reported() -> None:
    """The element with the largest error over its bound is named, not the largest error."""
    agreement = compare(row(10.0, 3.0), row(0.0, 0.0), row(8.0, 1.0))
    assert agreement.margin == 3.0
    violation = agreement.violation
    assert violation is not None
    assert (violation.kind, violation.where) == ("value", [1])
    assert (violation.expected, violation.got) == (0.0, 3.0)


def test_wording_of_a_wrong_value() -> None:
    """The sentence says what is wrong, where, what was expected, what came and what is allowed."""
    agreement = compare(
        torch.tensor([[0.0, 3.0]]), torch.tensor([[0.0, 1.0]]), row(1.0, 0.5), wording="it is wrong"
    )
    assert agreement.violation is not None
    assert agreement.violation.message == (
        "it is wrong at [0, 1]: expected 1, got 3 (error 2, allowed 0.5)"
    )


def test_wording_of_a_value_that_is_not_finite() -> None:
    """NaN is told apart from a wrong value, with how many elements are broken."""
    agreement = compare(row(NAN, 1.0, INF), row(0.0, 1.0, 2.0), row(1.0, 1.0, 1.0), wording="odd")
    assert agreement.violation is not None
    assert agreement.violation.message == (
        "odd: not finite at [0]: expected 0, got nan (2 of 3 elements are)"
    )


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_finiteness_comes_first(value: float) -> None:
    """A value that is not finite outweighs any wrong one, whatever the bound."""
    agreement = compare(row(50.0, value), row(0.0, 0.0), row(1.0, INF))
    assert agreement.margin == INF
    assert agreement.violation is not None
    assert (agreement.violation.kind, agreement.violation.where) == ("finite", [1])


def test_zero_bound_demands_equality() -> None:
    """Where no error is allowed, none is tolerated, and none is no division by zero."""
    assert compare(row(1.0), row(1.0), row(0.0)).margin == 0.0
    agreement = compare(row(1.0 + 1e-12), row(1.0), row(0.0))
    assert agreement.margin == INF
    assert agreement.violation is not None
    assert agreement.violation.kind == "value"


def test_rows_that_are_not_judged_may_hold_anything() -> None:
    """Neither NaN nor wrong values count where nothing is judged."""
    judged = torch.tensor([True, False, False])
    agreement = compare(row(1.0, NAN, 9.0), row(1.0, 0.0, 0.0), row(0.1, 0.1, 0.1), judged=judged)
    assert agreement.violation is None
    assert agreement.margin == 0.0


def test_judged_rows_broadcast() -> None:
    """One flag a row serves all its channels."""
    judged = torch.tensor([[True], [False]])
    got, expected = torch.tensor([[1.0, 1.0], [5.0, NAN]]), torch.ones(2, 2)
    assert compare(got, expected, torch.full((2, 2), 0.1), judged=judged).violation is None


def test_tables_say_which_elements_are_judged() -> None:
    """A violation keeps which elements count, where not all of them do."""
    got, expected, bound = row(5.0, 1.0), row(1.0, 1.0), row(1.0, 1.0)
    assert "judged" not in compare(got, expected, bound).tables
    tables = compare(got, expected, bound, judged=torch.tensor([True, False])).tables
    assert tables["judged"]["values"] == [True, False]


def test_nothing_is_judged_where_nan_is_expected() -> None:
    """An expected NaN is left to the clause that expects it."""
    agreement = compare(row(3.0, 1.0), row(NAN, 1.0), row(1.0, 1.0))
    assert agreement.violation is None
    assert agreement.margin == 0.0


def test_bound_that_is_no_number_allows_nothing() -> None:
    """A NaN bound is not a way to pass, nor a crash of the harness."""
    assert compare(row(1.0), row(1.0), row(NAN)).violation is None
    agreement = compare(row(2.0), row(1.0), row(NAN))
    assert agreement.violation is not None
    assert agreement.margin == INF


def test_infinite_bound_allows_everything_finite() -> None:
    """Where nothing can be promised, any finite number agrees."""
    assert compare(row(1e300), row(0.0), row(INF)).margin == 0.0


def test_empty_answers_agree() -> None:
    """No elements, no error."""
    empty = torch.zeros(0, 3)
    assert compare(empty, empty, empty).margin == 0.0


def test_low_precision_is_compared_in_float64() -> None:
    """A half-precision answer is not compared in half precision."""
    got = torch.tensor([1.0], dtype=torch.float16)
    agreement = compare(got, row(1.0 + 1e-9), row(1e-10))
    assert agreement.margin == pytest.approx(10.0, rel=1e-3)


def test_moves_sees_what_leaves_the_bound() -> None:
    """Another answer moves when it leaves the bound somewhere that is judged."""
    assert not moves(row(1.0), row(1.1), row(0.2))
    assert moves(row(1.0), row(1.3), row(0.2))
    assert not moves(row(1.0, 1.0), row(1.0, 9.0), row(0.2, 0.2), torch.tensor([True, False]))


def test_nan_moves() -> None:
    """A counterfactual that is not finite would be seen."""
    assert moves(row(1.0), row(NAN), row(0.2))


def test_another_shape_moves() -> None:
    """A counterfactual of another shape would be seen."""
    assert moves(row(1.0), row(1.0, 1.0), row(0.2))


def test_two_answers_of_nan_do_not_agree() -> None:
    """Where both are answers of the candidate, both must be finite."""
    agreement = compare(row(NAN), row(NAN), row(1.0), both_answers=True, wording="odd")
    assert agreement.margin == INF
    assert agreement.violation is not None
    assert agreement.violation.kind == "finite"
    assert agreement.violation.message == "neither of two answers is finite at [0]: nan"
    agreement = compare(row(1.0), row(NAN), row(1.0), both_answers=True, wording="odd")
    assert agreement.violation is not None
    message = "odd: one of the two answers is not finite at [0]: nan"
    assert agreement.violation.message == message
    unjudged = torch.tensor([False])
    assert compare(row(1), row(NAN), row(1), both_answers=True, judged=unjudged).violation is None


def wrong_at(
    *index: int, shape: tuple[int, ...], axes: tuple[str, ...] | None = None
) -> Comparison:
    """A comparison of zeros in which one element is off by 2, twice the bound."""
    got = torch.zeros(shape)
    got[index] = 2.0
    return compare(got, torch.zeros(shape), torch.ones(shape, dtype=torch.float64), axes=axes)


def test_where_names_the_axes() -> None:
    """The worst element of heads, of tokens and of weights is given by the names of its axes."""
    heads = wrong_at(1, 0, 2, 3, shape=(2, 1, 3, 4))
    assert heads.where == {"batch": 1, "head": 0, "query": 2, "channel": 3}
    assert "at batch 1, head 0, query 2, channel 3:" in disagreement(heads)
    assert wrong_at(0, 2, 3, shape=(2, 3, 4)).where == {"batch": 0, "query": 2, "channel": 3}
    weights = wrong_at(0, 0, 2, 3, shape=(2, 1, 3, 4), axes=WEIGHT_AXES)
    assert weights.where == {"batch": 0, "head": 0, "query": 2, "key": 3}


def test_where_is_empty_without_names() -> None:
    """Other shapes have no names: the index is given instead."""
    nameless = wrong_at(1, 2, shape=(2, 3))
    assert nameless.where == {}
    assert nameless.index == (1, 2)
    assert "at [1, 2]:" in disagreement(nameless)


def test_axes_that_do_not_fit_name_nothing() -> None:
    """Names of another number of axes are not put to the wrong numbers."""
    assert wrong_at(1, 2, shape=(2, 3), axes=WEIGHT_AXES).where == {}


@given(error=st.floats(0.0, 1e30), bound=st.floats(0.0, 1e30), expected=st.floats(-1e3, 1e3))
def test_reason_is_empty_exactly_within_the_bound(
    error: float, bound: float, expected: float
) -> None:
    """disagreement() is "" exactly when the margin is at most 1, and then there is no violation."""
    comparison = compare(row(expected + error), row(expected), row(bound))
    assert (disagreement(comparison) == "") == (comparison.margin <= 1.0)
    assert (comparison.violation is None) == (comparison.margin <= 1.0)


def test_remainder_completes_what_is_expected() -> None:
    """What float64 cannot hold of the exact answer counts: an error of 1e-20 is seen as such."""
    expected, remainder, bound = row(1.0), row(1e-20), row(1e-21)
    assert compare(row(1.0), expected, bound).margin == 0.0
    comparison = compare(row(1.0), expected, bound, remainder=remainder)
    assert comparison.error == pytest.approx(1e-20)
    assert comparison.margin == pytest.approx(10.0)


def test_sentence_tells_the_largest_part_and_the_scale() -> None:
    """The stage that dominates the bound and the fitted scale error stand in the reason."""
    comparison = wrong_at(0, 2, shape=(2, 3)).replace(
        parts={"score": 0.75, "exp": 0.25}, scale_error=0.00123
    )
    sentence = disagreement(comparison)
    assert "75% of it for rounding of the logits" in sentence
    assert sentence.endswith("; this fits a scale with a relative error of +0.00123")


@pytest.mark.parametrize(
    ("error", "message"),
    [(9.9, ", 94% of it for rounding in the weighted sums)"), (10.0, ""), (1e6, "")],
)
def test_gross_errors_are_not_put_down_to_rounding(error: float, message: str) -> None:
    """What dominates the bound is said of errors less than ten times as large, and of no others."""
    comparison = compare(row(error), row(0.0), row(1.0)).replace(parts={"accumulation": 0.94})
    assert disagreement(comparison).endswith(message or ", allowed 1)")
    assert comparison.violation is not None
    assert comparison.violation.measured["parts"] == {"accumulation": 0.94}


def test_every_stage_can_be_said() -> None:
    """Each stage that a bound can consist of has words."""
    assert set(SPOKEN_STAGES) == set(STAGES)


def test_measured_numbers_reach_the_report() -> None:
    """Margin, error, bound, axes, parts and the scale error survive the report's JSON."""
    comparison = wrong_at(1, 0, 2, 3, shape=(2, 1, 3, 4)).replace(
        parts={"rounding": 1.0}, scale_error=-0.5
    )
    entry = ClauseResult(
        id="numerics.golden",
        family="numerics",
        level="MUST",
        status="failed",
        violation=comparison.violation,
    ).as_json()
    read = result_from_json(json.loads(json.dumps(entry, allow_nan=False)))
    assert read.violation is not None
    assert read.violation.measured == {
        "margin": 2.0,
        "error": 2.0,
        "bound": 1.0,
        "batch": 1,
        "head": 0,
        "query": 2,
        "channel": 3,
        "parts": {"rounding": 1.0},
        "scale_error": -0.5,
    }


def test_nothing_that_was_not_found_is_reported() -> None:
    """Without parts and without a fitted scale the report has no such entries."""
    violation = wrong_at(1, shape=(2,)).violation
    assert violation is not None
    assert set(violation.measured) == {"margin", "error", "bound"}


def test_infinite_margins_can_be_written() -> None:
    """An answer that is not finite has an infinite margin, which JSON holds as a text."""
    violation = compare(row(INF), row(0.0), row(1.0)).violation
    assert violation is not None
    entry = ClauseResult(
        id="a.b", family="a", level="MUST", status="failed", violation=violation
    ).as_json()
    assert entry["violation"]["measured"]["margin"] == "inf"
    json.dumps(entry, allow_nan=False)


def test_answers_of_two_shapes_are_not_compared() -> None:
    """A user's comparison of answers of two shapes is refused, not broadcast until it agrees."""
    with pytest.raises(ValueError, match=r"shape \(1,\), the expected one \(5,\)"):
        compare(torch.zeros(1), torch.zeros(5), torch.ones(5))
