from __future__ import annotations

import math
from io import StringIO
from typing import Any

import pytest
from records import result
from rendered import Reading, rendered
from view_records import EVERY, FAILED, NASTY, RECORDS, candidate, of, record

from conformance.session.comparing import ComparedRecord, joined
from conformance.views import COMPARED
from conformance.views.comparison import circumstances, compared, conventions, sources, value_words
from conformance.views.comparison import render_comparison_markdown as render_markdown
from conformance.views.comparison import show_comparison as show
from conformance.views.html import MOST_DETAILED
from conformance.views.html import render_comparison as render_html
from conformance.views.html_words import complete


def declared(name: str, **declaration: Any) -> dict[str, Any]:
    """A candidate with a declaration."""
    return candidate([result(margin=0.5)], name, declaration=declaration)


def two(**changes: Any) -> dict[str, Any]:
    """A run and an earlier one of another seed."""
    earlier = {**of(result("failed", margin=3.0)), "seed": 9, **changes}
    return joined(
        [
            ComparedRecord(name="this run", record=of(result(margin=0.5))),
            ComparedRecord(name="old", record=earlier),
        ]
    )


def test_conventions_that_differ_come_first() -> None:
    """What candidates declare, keyword by keyword; what one does not declare is said."""
    report = complete(
        record(
            declared("a", masks=["keep"], causal=None, gqa=True),
            declared("b", masks=["keep", "bias"], causal=None),
        )
    )
    rows = conventions(report)
    assert [row.differs for row in rows] == sorted((row.differs for row in rows), reverse=True)
    by_name = {row.name: row.values for row in rows}
    assert by_name["masks"] == ["keep", "keep, bias"]
    assert by_name["causal"] == ["none", "none"]
    assert by_name["gqa"] == ["yes", "not declared"]


def test_semantics_not_named_are_the_standards() -> None:
    """A record lists the choices that deviate; the other candidate's is the standard."""
    report = complete(record(declared("a", semantics={"scale": "none"}), declared("b")))
    by_name = {row.name: row.values for row in conventions(report)}
    assert by_name["semantics: scale"] == ["none", "standard"]


def test_texts_of_a_declaration_are_no_convention() -> None:
    """Assumptions and the words of a precision are told elsewhere."""
    report = complete(record(declared("a", assumptions=["x"], precision={"float32": ["y"]})))
    assert {row.name for row in conventions(report)} == {"kind"}


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, "none"), ([], "none"), (True, "yes"), (False, "no"), (0, "0"), ("BHSD", "BHSD"),
     (["a", "b"], "a, b"), ({"a": None, "b": [1]}, "a: none, b: 1")],
)  # fmt: skip
def test_declared_values_in_words(value: Any, words: str) -> None:
    """Plain words instead of JSON."""
    assert value_words(value) == words


def test_clauses_differ_where_somebody_fares_otherwise() -> None:
    """Not applicable and not run are no difference; a failure beside a pass is."""
    report = complete(
        record(
            candidate([result(slug="a.a"), result(slug="a.b"), result(slug="a.c")], "x"),
            candidate([result("failed", "a.a"), result("not-applicable", "a.b")], "y"),
        )
    )
    assert {clause.slug: clause.differs for clause in compared(report)} == {
        "a.a": True,
        "a.b": False,
        "a.c": False,
    }


@pytest.mark.parametrize(
    ("others", "sentence"),
    [
        ((), "2 clauses were run for some candidates alone"),
        (("a.b",), "1 clause was run for some candidates alone"),
        (("a.b", "a.c"), ""),
    ],
)
def test_clauses_that_somebody_was_not_asked_are_counted(
    others: tuple[str, ...], sentence: str
) -> None:
    """No difference among them is no likeness: each view says of how many clauses that holds."""
    every = [result(slug=slug) for slug in ("a.a", "a.b", "a.c")]
    fewer = [result(slug=slug) for slug in ("a.a", *others)]
    whole, part = of(*every), of(*fewer)
    report = joined([ComparedRecord(name="a", record=whole), ComparedRecord(name="b", record=part)])
    assert not any(clause.differs for clause in compared(complete(report)))
    on_the_terminal = StringIO()
    show(report, on_the_terminal)
    for shown_text in (on_the_terminal.getvalue(), *(view.render(report) for view in COMPARED)):
        text = " ".join(shown_text.split())
        assert sentence in text
        assert ("run for some candidates alone" in text) is bool(sentence)


def test_runs_of_other_clauses_are_told_by_their_options() -> None:
    """Why a clause was not run for somebody is the first thing to know."""
    runs = [{**of(result()), "options": {"only": only, "dtypes": None}} for only in ([], ["a.*"])]
    every = [ComparedRecord(name=str(at), record=run) for at, run in enumerate(runs)]  # type: ignore[arg-type]  # a record
    assert circumstances(complete(joined(every))) == [("--only", ["not given", "a.*"])]


def test_an_outcome_names_the_mistake() -> None:
    """The worst of all dtypes, with the mistake where it is known and the worst margin."""
    clauses = [result(margin=0.5), result("failed", margin=7.0, dtype="float16", diagnosis=[
        {"name": "scale-missing", "text": "", "fix": "", "confidence": 1.0}])]  # fmt: skip
    (clause,) = compared(complete(record(candidate(clauses))))
    (outcome,) = clause.outcomes
    assert (outcome.kind, outcome.why, outcome.margin) == ("fail", "scale-missing", 7.0)
    assert clause.worst == 7.0


def test_circumstances_that_differ_are_told() -> None:
    """Two runs of different seeds are not alike; two of one seed are."""
    assert circumstances(complete(two())) == [("seed", ["3", "9"])]
    assert circumstances(complete(two(seed=3))) == []
    assert sources(complete(two())) == ["this run", "old"]


def test_the_page_says_what_differs() -> None:
    """Verdicts, clauses, conventions, margins and unlike runs are on the page."""
    text = render_html(two())
    for shown_text in (
        "1 of 1 clauses end differently",
        "mine (old)",
        "not made alike",
        "0.5",
        "Margins",
    ):
        assert shown_text in text


def test_margins_are_listed_the_worst_first() -> None:
    """NaN, then the largest; what compares no numbers is not listed."""
    clauses = [result(slug=f"a.c{n}", margin=m) for n, m in enumerate((0.1, math.nan, 4.0, None))]
    text = render_markdown(record(candidate(clauses), candidate([], "b")))
    listed = text[text.index("Largest margins") :]
    places = [listed.index(f"`a.c{n}`") for n in (1, 2, 0)]
    assert places == sorted(places)
    assert "a.c3" not in listed


def test_many_candidates_are_told_by_signs() -> None:
    """More than can stand side by side in sentences: the matrix shows how they differ."""
    entries = [candidate([result()], f"c{n}") for n in range(MOST_DETAILED)]
    text = render_html(record(*entries, candidate([result("failed")], "odd")))
    assert "The matrix below shows how" in text
    assert 'class="mini"' not in text


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("view", COMPARED, ids=lambda view: view.name)
def test_every_record_can_be_compared(view: Any, name: str) -> None:
    """Old, empty and hostile records render, alone and beside another, alike twice."""
    for report in (
        RECORDS[name],
        joined(
            [
                ComparedRecord(name="a", record=RECORDS[name]),
                ComparedRecord(name=NASTY, record=of(*EVERY)),
            ]
        ),
    ):
        text = view.render(report)
        assert text == view.render(report)
        tags = (Reading(text) if view.name == "html" else rendered(text)).tags
        assert tags.count("script") == (view.name == "html")
        assert "\x1b" not in text


def test_each_candidate_has_its_causes() -> None:
    """Beside other candidates a failing one is known by its mistake, not by a list of clauses."""
    both = record(candidate([FAILED], "wrong"), candidate([result()], "right"))
    said = "1 of 1 MUST clause failed, for 1 cause: scale-missing"
    file = StringIO()
    show(both, file)
    assert said in " ".join(file.getvalue().split())
    assert said in " ".join(render_markdown(both).replace("\\\\", "").split())
    assert said in render_html(both)
