"""Records that are kept: read, decided by a library's file, and compared with older ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from surveyed import candidate, clause, library_file, record

from survey import library, pages, records


def test_a_record_comes_back(tmp_path: Path) -> None:
    """What is saved is read again, a line a candidate."""
    one = record("one", candidate("a"), candidate("b"))
    records.save("one", one, tmp_path)
    assert records.load(tmp_path) == {"one": one}
    lines = (tmp_path / "one.json").read_text(encoding="utf-8").splitlines()
    assert sum('"name": ' in line for line in lines) == 2
    records.save("none", record("none"), tmp_path)
    assert records.load(tmp_path)["none"]["candidates"] == []


@pytest.mark.parametrize("text", ["{", "[]", '{"survey": 2}'])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    """What is no record, or of another schema, is named."""
    (tmp_path / "one.json").write_text(text, encoding="utf-8")
    with pytest.raises(library.SurveyError, match=r"one\.json is no"):
        records.load(tmp_path)


def test_rows_of_other_candidates_are_kept(tmp_path: Path) -> None:
    """What was not judged this time keeps its row and its date, unless the version is another."""
    both = {"layer": "identify", "model": "check"}
    path = library_file(tmp_path, "one", candidates=both)
    path.write_text(path.read_text(encoding="utf-8") + "\nmodel = layer\n", encoding="utf-8")
    one = library.read("one", tmp_path)
    older = (candidate("layer"), candidate("model/m"), candidate("model/m#0"))
    before = record("one", *older, date="2026-11-17")
    new = record("one", candidate("model", "fails"))
    made = records.completed(new, before, one)
    assert made["candidates"] == [candidate("layer", date="2026-11-17"), *new["candidates"]]
    assert "judged 2026-11-17" in pages.markdown({"one": made}, None)
    assert "2026-11-17 to 2026-11-24" in pages.html({"one": made}, None)
    assert records.completed(new, {**before, "version": "0.9"}, one) == new


def test_rows_of_another_file_are_not_kept(tmp_path: Path) -> None:
    """A row stays while the file that made it is the same but for promises and decisions."""
    one = library.read("one", library_file(tmp_path, "one").parent)
    before = record("one", candidate("layer", digest=one.digest, date="2026-11-17"))
    absent = record("one", status="not installed", reason="no index", version="")
    new = record("one")
    decided = {"clause": "mask.*", "decided": "ours", "reason": "so"}
    path = library_file(tmp_path, "one", decided=(decided,))
    one = library.read("one", tmp_path)
    assert records.completed(new, before, one)["candidates"] == before["candidates"]
    assert records.completed(absent, before, one) == before
    path.write_text(path.read_text(encoding="utf-8").replace("(4, 2)", "(8, 2)"), encoding="utf-8")
    assert records.completed(new, before, one) == new
    assert records.completed(absent, before, one) == absent


def test_failures_are_decided_by_the_file(tmp_path: Path) -> None:
    """A decision is written beside the failures that it covers; the rest is open, and listed."""
    convention = "undocumented convention"
    decided = {"clause": "mask.*", "decided": convention, "reason": "so", "candidates": "a"}
    promise = {"sentence": "It hides.", "link": "https://example.org", "clauses": ["mask.*"]}
    library_file(tmp_path, "one", decided=(decided,), promises=(promise,))
    one = library.read("one", tmp_path)
    failing = [clause("mask.golden"), clause("numerics.golden"), clause("a.b", level="SHOULD")]
    made = records.decided(record("one", candidate("a", clauses=failing)), one)
    first, second, _ = made["candidates"][0]["clauses"]
    assert (first["decided"], first["why"]) == (convention, "so")
    assert "decided" not in second
    assert [entry["id"] for _, entry in records.undecided(made)] == ["numerics.golden"]
    assert made["promises"][0]["held"] == "broken"
    assert made["promises"][0]["by"] == ["a mask.golden"]
    assert records.decided(made, one) == made


def test_a_candidate_without_a_verdict_can_be_decided(tmp_path: Path) -> None:
    """Its row has the finding; a candidate with a verdict, and one of another name, have none."""
    decided = {"clause": "reached", "reason": "it raises", "finding": "015-a-finding"}
    decided |= {"decided": "defect", "candidates": "l*"}
    one = library.read("one", library_file(tmp_path, "one", decided=(decided,)).parent)
    rows = [candidate(name, "not judged", reason="no call") for name in ("layer", "model")]
    made = records.decided(record("one", *rows, candidate("little")), one)
    (failure,), *others = [row["clauses"] for row in made["candidates"]]
    assert (failure["reason"], failure["why"]) == ("no call", "it raises")
    assert others == [[], []]
    assert records.decided(made, one) == made
    assert "[015](findings/015-a-finding.md)" in pages.markdown({"one": made}, None)


MASKS = {"sentence": "True takes part.", "link": "https://example.org", "clauses": ["mask.*"]}
REFUSED = {"masks": ["keep"], "causal": "top-left", "semantics": {"causal_combination": "refused"}}


@pytest.mark.parametrize(
    ("declares", "declared", "held"),
    [
        ({}, {"masks": ["drop"]}, "kept"),
        ({"masks": ["keep"]}, {"masks": ["keep", "bias"]}, "kept"),
        ({"masks": ["keep"]}, {"masks": ["drop", "bias"]}, "broken"),
        ({"masks": ["keep"]}, {"masks": ["bias"]}, "untested"),
        ({"masks": ["keep"]}, {}, "untested"),
        ({"causal": "top-left"}, {"causal": "bottom-right"}, "broken"),
        ({"causal_combination": "refused"}, {**REFUSED, "semantics": {}}, "broken"),
        ({"causal_combination": "refused"}, REFUSED, "kept"),
        ({"mask_shapes": ["BK"]}, {"mask_shapes": ["BHQK", "QK"]}, "broken"),
        ({"mask_shapes": ["BK", "B"]}, {"mask_shapes": ["BK"]}, "kept"),
        ({"empty_rows": "zeros"}, {"empty_rows": {"drop": "zeros", "bias": "nan"}}, "broken"),
    ],
)
def test_a_promise_is_held_against_what_is_declared(
    tmp_path: Path, declares: dict[str, object], declared: dict[str, object], held: str
) -> None:
    """Clauses that pass keep no promise that the declaration contradicts: an inverted mask."""
    library_file(tmp_path, "one", promises=({**MASKS, "declares": declares},))
    one = library.read("one", tmp_path)
    (promise,) = records.decided(record("one", candidate("a", declared=declared)), one)["promises"]
    assert promise["held"] == held
    assert [name.partition(" ")[0] for name in promise["by"]] == ["a"] * (held == "broken")


@pytest.mark.parametrize(
    ("row", "held"),
    [
        ({"passed": "mask.golden"}, "kept"),
        ({"passed": "numerics.golden"}, "untested"),
        ({"passed": "", "clauses": [clause("mask.golden")]}, "untested"),
        ({"passed": "", "clauses": [clause("mask.padding")]}, "broken"),
    ],
)
def test_a_promise_is_kept_where_something_ran(
    tmp_path: Path, row: dict[str, object], held: str
) -> None:
    """Nothing ran, or failed by the survey's own mistake alone: the promise is untested."""
    ours = {"clause": "mask.golden", "decided": "ours", "reason": "so"}
    library_file(tmp_path, "one", promises=(MASKS,), decided=(ours,))
    made = records.decided(record("one", candidate("a", **row)), library.read("one", tmp_path))
    assert made["promises"][0]["held"] == held


def test_changes_are_sentences() -> None:
    """Versions, verdicts, failures and libraries that changed are told, and nothing else."""
    old = {
        "one": record(
            "one", candidate("a"), candidate("b", "fails", clauses=[clause("mask.golden")])
        ),
        "two": record("two"),
        "same": record("same", candidate("a"), date="2026-11-17"),
    }
    new = {
        "one": record(
            "one",
            candidate("a", "fails", clauses=[clause("mask.padding")]),
            candidate("b"),
            version="2.0",
        ),
        "three": record("three"),
        "same": record("same", candidate("a")),
    }
    assert records.changes(old, new) == [
        "one: version 1.0, now 2.0",
        "one: a: conforms, now fails",
        "one: a fails mask.padding",
        "one: b: fails, now conforms",
        "one: b passes mask.golden",
        "three: surveyed for the first time",
        "two: no longer surveyed",
    ]
