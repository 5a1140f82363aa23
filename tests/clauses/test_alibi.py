"""bias.alibi: any number of heads."""

from __future__ import annotations

import pytest
from examples import core, failing, run_clause

from candidates.broken._prepared import Prepared
from candidates.broken.linear_biases import OneSequenceOfSlopes
from candidates.legitimate.distances import counted_from_the_first_key, with_linear_biases
from conformance import Semantics


class Linear(Prepared):
    """Biases by distance, in torch's own dtype of the scores."""

    linear = True


def test_without_linear_biases_it_does_not_apply() -> None:
    """The reason is that none are declared."""
    assert run_clause(core(), "bias.alibi").reason == "its semantics declares no linear biases"


def test_correct_ones_pass() -> None:
    """Distances, and places counted from the first key behind a causal mask."""
    for candidate in (with_linear_biases, counted_from_the_first_key):
        result = run_clause(candidate, "bias.alibi")
        assert (result.status, result.reason) == ("passed", "")
        assert result.binding > 0


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
