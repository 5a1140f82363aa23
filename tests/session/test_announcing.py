from __future__ import annotations

from datetime import date

import pytest
from records import loaded, result

from conformance.base.results import ClauseResult, Violation
from conformance.session.accepted_failures import UnjudgedRun, announcements
from conformance.session.expectations import Selection

Pair = tuple[str, str]
A, B = ("float32", "cpu"), ("float64", "cpu")
C, D = ("float32", "cuda"), ("float64", "cuda")


def clause_result(pair: Pair, *, fails: bool) -> ClauseResult:
    """The result of a clause in a dtype on a device."""
    violation = Violation(kind="value", message="off\nby 1") if fails else None
    status = "failed" if fails else "passed"
    return result(status, dtype=pair[0], device=pair[1], violation=violation)


CONDITIONS: dict[str, tuple[list[Pair], list[Pair], list[str], list[str], list[Pair]]] = {
    # what fails, what passes, the declared dtypes and devices, what is written
    "everywhere": ([A], [], ["float32"], ["cpu"], [("*", "*")]),
    "in every dtype": ([A, B], [], ["float32", "float64"], ["cpu"], [("*", "*")]),
    "in one dtype": ([A], [B], ["float32", "float64"], ["cpu"], [("float32", "*")]),
    "in those that were chosen": ([A], [], ["float32", "float64"], ["cpu"], [("float32", "*")]),
    "on one device": (
        [C, D],
        [A, B],
        ["float32", "float64"],
        ["cpu", "cuda"],
        [("*", "cuda")],
    ),
    "on a device that is not declared": ([C], [], ["float32"], ["cpu"], [("*", "cuda")]),
    "in a corner": ([D], [A, B, C], ["float32", "float64"], ["cpu"], [("float64", "cuda")]),
    "in two corners": (
        [A, D],
        [B, C],
        ["float32", "float64"],
        ["cpu", "cuda"],
        [A, D],
    ),
    "nowhere twice": ([A, D], [], ["float32", "float64"], ["cpu", "cuda"], [("*", "*")]),
}


@pytest.mark.parametrize(
    ("fails", "passes", "dtypes", "devices", "written"),
    CONDITIONS.values(),
    ids=CONDITIONS.keys(),
)
def test_as_few_entries_as_say_it_exactly(
    fails: list[Pair],
    passes: list[Pair],
    dtypes: list[str],
    devices: list[str],
    written: list[Pair],
) -> None:
    """An entry names a dtype or a device only where the clause does not fail elsewhere."""
    failures = [clause_result(pair, fails=True) for pair in fails]
    results = [*failures, *(clause_result(pair, fails=False) for pair in passes)]
    ran = UnjudgedRun(
        loaded=[loaded("mine", declaration={"dtypes": dtypes, "devices": devices})],
        results={"mine": results},
        selection=Selection(slugs=["mask.golden"]),
        today=date(2030, 6, 15),
    )
    announced = announcements(ran, [("mine", failure) for failure in failures], {})
    assert [(new.entry.dtype, new.entry.device) for new in announced] == written
    covered = {
        (entry.dtype, entry.device)
        for entry in results
        if any(
            new.entry.concerns("mine", "mask.golden", entry.dtype, entry.device)
            for new in announced
        )
    }
    assert covered == set(fails)


def test_a_name_is_no_glob() -> None:
    """Signs of globs in a candidate's name stand for themselves."""
    failure = clause_result(A, fails=True)
    name = "heads[2]*?"
    ran = UnjudgedRun(
        loaded=[loaded(name, declaration={"dtypes": ["float32"], "devices": ["cpu"]})],
        results={name: [failure]},
        selection=Selection(slugs=["mask.golden"]),
        today=date(2030, 6, 15),
    )
    (new,) = announcements(ran, [(name, failure)], {})
    assert new.entry.concerns(name, "mask.golden", "float32")
    assert not new.entry.concerns("heads2xx", "mask.golden", "float32")
    assert new.comments == ("MUST: off\nby 1",)
