from __future__ import annotations

from typing import Any

from records import PROBLEM

from conformance.base.record import ClauseEntry
from conformance.session.causes import causes_of


def named(name: str, confidence: float = 1.0) -> dict[str, Any]:
    """One entry of a diagnosis."""
    return {"name": name, "text": f"it is {name}", "fix": f"not {name}", "confidence": confidence}


def failed(slug: str, *diagnosis: dict[str, Any], keys: int = 4, **more: Any) -> ClauseEntry:
    """A failed MUST on a problem of some keys."""
    problem = {**PROBLEM, "geometry": {**PROBLEM["geometry"], "key_length": keys}}
    clause: dict[str, Any] = {
        "id": slug,
        "level": "MUST",
        "status": "failed",
        "dtype": "float32",
        "device": "cpu",
        "diagnosis": list(diagnosis),
        "counterexample": {"problem": problem},
        "violation": {"kind": "value", "message": f"{slug} is wrong"},
        **more,
    }
    return clause  # type: ignore[return-value]


def test_one_mistake_is_one_cause_with_its_smallest_input() -> None:
    """Failures of one name are told once, on the smallest problem among them."""
    clauses = [failed("a.one", named("x"), keys=9), failed("a.two", named("x"), keys=2)]
    (cause,) = causes_of([*clauses, failed("a.one", named("x"), keys=9, dtype="float64")])
    assert (cause["name"], cause["text"], cause["fix"]) == ("x", "it is x", "not x")
    assert cause["clauses"] == ["a.one", "a.two"]
    assert cause["failure"] == {"id": "a.two", "dtype": "float32", "device": "cpu"}
    assert cause["counterexample"] == clauses[1]["counterexample"]


def test_a_picture_stays_at_its_failure() -> None:
    """A cause names the failure that it shows; what was read there is not written twice."""
    drawn = {**named("x"), "picture": {"text": "a weight is wrong"}}
    (cause,) = causes_of([failed("a.one", drawn, {**drawn, "name": "y"})])
    assert "picture" not in cause
    assert "picture" not in cause["alternatives"][0]


def test_as_few_causes_as_explain_everything() -> None:
    """A failure that two mistakes explain goes to the one that is needed anyway."""
    both = failed("a.both", named("y", 0.5), named("x", 0.5))
    clauses = [both, failed("a.x", named("x")), failed("a.z", named("z"))]
    first, second = causes_of(clauses)
    assert (first["name"], first["clauses"]) == ("x", ["a.both", "a.x"])
    assert "alternatives" not in first
    assert (second["name"], second["clauses"]) == ("z", ["a.z"])


def test_mistakes_that_explain_as_much_are_alternatives() -> None:
    """Where nothing tells two mistakes apart, both are named."""
    (cause,) = causes_of([failed("a.one", named("x", 0.5), named("y", 0.5))])
    assert [other["name"] for other in cause["alternatives"]] == ["y"]


def test_what_a_mistake_explains_without_a_name_joins_it() -> None:
    """A failure that was acted out belongs to that mistake, not to the unknown ones."""
    facts = named("unknown-mistake", 0.0)
    joined = failed("a.two", facts, explained_by="x")
    first, second = causes_of([failed("a.one", named("x")), joined, failed("a.three", facts)])
    assert (first["name"], first["clauses"]) == ("x", ["a.one", "a.two"])
    assert (second["name"], second["clauses"]) == ("unknown-mistake", ["a.three"])


def test_what_is_left_stands_alone() -> None:
    """A failure without any diagnosis is called after its clause; what passed has no cause."""
    causes = causes_of(
        [failed("a.one"), failed("a.two", level="SHOULD"), failed("a.three", status="passed")]
    )
    assert [(cause["name"], cause["level"]) for cause in causes] == [
        ("a.one", "MUST"),
        ("a.two", "SHOULD"),
    ]
    assert causes[0]["text"] == "a.one is wrong"
    assert causes_of([]) == []


def test_answers_that_are_not_finite_are_one_cause() -> None:
    """Ten clauses that meet the same NaN are one thing to mend."""
    violation = {"kind": "finite", "message": "nan at batch 0"}
    (cause,) = causes_of([failed(f"a.{n}", violation=violation) for n in range(10)])
    assert (cause["name"], len(cause["clauses"])) == ("not-finite", 10)
    assert causes_of([failed("a.b", violation=violation)])[0]["name"] == "a.b"


def test_every_failure_has_one_cause() -> None:
    """No failure is lost and none is told twice, whatever its diagnosis is."""
    diagnoses = [[], [named("x")], [named("x"), named("y")], [named("unknown-mistake", 0.0)]]
    clauses = [failed(f"a.{n}", *diagnoses[n % 4]) for n in range(12)]
    named_clauses = [slug for cause in causes_of(clauses) for slug in cause["clauses"]]
    assert sorted(named_clauses) == sorted(clause["id"] for clause in clauses)
