from __future__ import annotations

import ast
import json
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
from records import result

import conformance
from conformance.base.profile import PROFILES
from conformance.base.results import (
    KINDS,
    STATUSES,
    Replaceable,
    Violation,
    plain,
    result_from_json,
)


def test_numbers_that_are_not_finite_become_texts() -> None:
    """JSON has no NaN: NaN and infinities are texts, at any depth."""
    assert plain([math.nan, (math.inf, {"a": -math.inf}), 1.5, None, True]) == [
        "nan",
        ["inf", {"a": "-inf"}],
        1.5,
        None,
        True,
    ]


def test_a_copy_has_the_fields_and_nothing_that_was_computed() -> None:
    """A copy is equal but for what is changed, and computes anew what its original remembers."""

    @dataclass(frozen=True)
    class Sides(Replaceable):
        long: int
        short: int = 1

        @cached_property
        def area(self) -> int:
            return self.long * self.short

    sides = Sides(3)
    assert sides.area == 3
    wider = sides.replace(short=2)
    assert (wider, wider.area, sides.area) == (Sides(3, 2), 6, 3)
    with pytest.raises(TypeError, match="height"):
        sides.replace(height=1)


def test_result_survives_json() -> None:
    """A result written as JSON text and read again is the same, an infinite margin too."""
    made = result(
        "failed", margin=math.inf, violation=Violation(kind="finite", message="nan", where=[0, 1])
    )
    text = json.dumps(made.as_json(), allow_nan=False)
    again = result_from_json(json.loads(text))
    assert again == made
    assert result_from_json(result().as_json()) == result()


def test_statuses_are_those_of_the_report() -> None:
    """The statuses are the contract's."""
    assert set(STATUSES) == {
        "passed",
        "failed",
        "error",
        "not-applicable",
        "untestable",
        "expected-failure",
        "unexpected-pass",
    }


def test_profiles_try_harder_and_harder() -> None:
    """Quick tries at least forty examples a clause; each next profile more, longer and smaller."""
    quick, default, thorough = (PROFILES[name] for name in ("quick", "full", "thorough"))
    assert PROFILES["default"] is default
    assert quick.examples >= 40
    assert quick.examples < default.examples < thorough.examples
    assert quick.longest < default.longest < thorough.longest
    assert thorough.longest >= 513
    assert quick.reductions < default.reductions < thorough.reductions


def kinds_in(path: Path) -> set[str]:
    """The kinds of violation that a file of the package names."""
    calls = [
        node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)
    ]
    return {
        str(keyword.value.value)
        for call in calls
        for keyword in call.keywords
        if ast.unparse(call.func).rpartition(".")[2] in ("Violation", "WorkerLost", "at")
        if keyword.arg == "kind" and isinstance(keyword.value, ast.Constant)
    } | {
        str(call.args[0].value)
        for call in calls
        if ast.unparse(call.func) == "violated" and isinstance(call.args[0], ast.Constant)
    }


def test_kinds_are_all_listed() -> None:
    """A kind that is not in the list could not be expected in a file of expected failures."""
    package = Path(conformance.__file__).parent
    named = {kind for path in package.rglob("*.py") for kind in kinds_in(path)}
    assert named == set(KINDS)
