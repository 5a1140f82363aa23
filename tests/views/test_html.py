from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

from failing_records import failing
from records import result
from view_records import (
    FAILED,
    NASTY,
    RECORDS,
    SHOULD_FAILED,
    candidate,
    of,
    record,
    site,
)

from conformance.base.results import Violation
from conformance.views.html import axis, columns, plots, render_html
from conformance.views.html_words import complete

MEGABYTE = 1_000_000


class Parsed(HTMLParser):
    """The elements of a page with their attributes, and its text outside style and script."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep an element."""
        self.elements.append((tag, dict(attrs)))
        self._inside = tag if tag in ("style", "script") else ""

    def handle_endtag(self, tag: str) -> None:
        """Leave style or script."""
        self._inside = "" if tag == self._inside else self._inside

    def handle_data(self, data: str) -> None:
        """Keep a text that is shown."""
        self.text += "" if self._inside else data

    def named(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of all elements of a name."""
        return [attributes for name, attributes in self.elements if name == tag]


def page(report: dict[str, Any]) -> Parsed:
    """The page of a record."""
    return Parsed(render_html(report))


def test_a_failure_is_told_in_full() -> None:
    """Requirement, diagnosis, fix, smallest input, tensors, picture and replay are all there."""
    text = page(failing()).text
    for said in (
        "With a mask, the softmax runs over the kept keys alone.",
        "mask-inverted",
        "fix",
        "smallest input",
        "expected",
        "got",
        "error / bound",
        "expected weights",
        "got - expected",
        "conformance replay 'REPORT.json#inverted/mask.golden'",
    ):
        assert said in text


def test_a_cause_leads_to_the_dtype_that_failed() -> None:
    """A clause that passed in its last dtype is a link to where it failed."""
    named = {"name": "scale-missing", "text": "no scale", "confidence": 1.0}
    both = [
        result("failed", slug, diagnosis=[named], dtype=dtype)
        for dtype in ("float32", "bfloat16")
        for slug in ("mask.golden", "numerics.golden")
    ]
    both[2] = result("passed", "mask.golden", dtype="bfloat16")
    assert '<a href="#f0-0"><code>mask.golden</code></a>' in render_html(of(*both))


def test_many_clauses_of_a_cause_are_folded_away() -> None:
    """A screen and a half of links: how many are of each family stands for them; few are listed."""
    named = [{"name": "x", "text": "it is x", "fix": "not x", "confidence": 1.0}]

    def links_of(count: int) -> str:
        every = [result("failed", f"mask.n{number}", diagnosis=named) for number in range(count)]
        text = render_html(of(*every))
        return text[text.index("<dt>explains</dt>") : text.index("About this run")]

    assert "<dd><details><summary>mask.* 30</summary>" in links_of(30)
    assert "mask.n29" in links_of(30)
    assert "<details><summary>" not in links_of(3).partition("</dl>")[0]


def test_nothing_comes_from_elsewhere() -> None:
    """No element loads anything: one style, one script, a data URL for the icon."""
    parsed = page(failing())
    loading = [
        value
        for _, attributes in parsed.elements
        for name, value in attributes.items()
        if name in ("src", "href", "action", "data", "srcset", "poster") and value
    ]
    assert {value for value in loading if not value.startswith("#")} == {"data:,"}
    assert len(parsed.named("script")) == len(parsed.named("style")) == 1


def test_texts_of_candidates_stay_texts() -> None:
    """Markup in names, messages, reasons, warnings and diagnoses is shown and never obeyed."""
    parsed = page(RECORDS["nasty"])
    assert "<script>alert(1)</script>" in parsed.text
    assert len(parsed.named("script")) == 1
    handlers = [name for _, given in parsed.elements for name in given if name.startswith("on")]
    assert handlers == []


def test_no_text_closes_the_page_or_is_read_as_a_template() -> None:
    """Ends of elements, comments and template signs of a candidate mean nothing."""
    said = "</style></script></html><!-- {{ 7 * 7 }} {% raw %} '\" onload=x"
    failed = result("failed", violation=Violation(kind="value", message=said))
    parsed = page(of(failed))
    assert said in parsed.text
    assert len(parsed.named("html")) == 1


def test_control_characters_are_written_out() -> None:
    """What turns the direction of writing, or is no character at all, arrives as an escape."""
    text = render_html(RECORDS["nasty"])
    assert not {sign for sign in NASTY if not sign.isprintable() and sign not in "\n\r"} & set(text)
    assert "\\u202e" in text
    assert "\\x00" in text


def test_a_long_message_is_cut_and_says_so() -> None:
    """Of 10,000 characters a page shows some, and counts the others."""
    said = "long " * 2000
    failed = result("failed", violation=Violation(kind="raised", message=said))
    text = render_html(of(failed))
    assert "8,000 more characters in the record" in text
    assert len(text) < len(render_html(of(result()))) + 12_000


def test_ten_candidates_stay_below_two_megabytes() -> None:
    """Ten candidates with forty real failures each, in a hundred clauses of four dtypes."""
    (failed, passed) = failing()["candidates"][0]["clauses"]
    dtypes = ("float32", "float64", "float16", "bfloat16")
    clauses = [
        {
            **(failed if number < 10 else passed),
            "id": f"family{number % 9}.c{number}",
            "dtype": dtype,
        }
        for number in range(100)
        for dtype in dtypes
    ]
    base = failing()["candidates"][0]
    entries = [{**base, "name": f"candidate_{n}", "clauses": clauses} for n in range(10)]
    text = render_html({**failing(), "candidates": entries})
    assert len(text.encode()) < 2 * MEGABYTE
    assert text.count('<details class="failure"') == 400


def test_what_is_left_out_is_counted() -> None:
    """Of very many failures the page says how many it does not tell, and stays small."""
    (failed, _) = failing()["candidates"][0]["clauses"]
    clauses = [{**failed, "id": f"family{n % 9}.c{n}"} for n in range(150)]
    base = failing()["candidates"][0]
    entries = [{**base, "name": f"candidate_{n}", "clauses": clauses} for n in range(20)]
    text = render_html({**failing(), "candidates": entries})
    assert len(text.encode()) < 2 * MEGABYTE
    said = re.search(r"([\d,]+) failures shown without the tensors of its input", text)
    missing = re.search(r"([\d,]+) failures shown in the table of clauses alone", text)
    assert said is not None or missing is not None


def test_a_link_leads_somewhere() -> None:
    """Every link of a page has its target on the page, whatever was left out."""
    for report in (failing(), *RECORDS.values()):
        parsed = page(report)
        targets = {given.get("id") for _, given in parsed.elements}
        links = {str(given.get("href")) for given in parsed.named("a")}
        assert {link for link in links if link[1:] not in targets} == set()


def test_no_two_elements_share_an_id() -> None:
    """Ids are unique, whatever candidates and clauses are called."""
    ids = [given["id"] for _, given in page(RECORDS["several"]).elements if "id" in given]
    assert len(ids) == len(set(ids))


def run(*margins: float | None, **more: Any) -> dict[str, Any]:
    """A completed record of one candidate with these margins, a clause each."""
    clauses = [result(slug=f"mask.c{n}", margin=margin, **more) for n, margin in enumerate(margins)]
    return complete(record(candidate(clauses)))


def test_very_many_lines_are_cut_and_counted() -> None:
    """Of many candidates each keeps the clauses nearest to their bound."""
    clauses = [result(slug=f"mask.c{n}", margin=n / 100) for n in range(60)]
    report = complete(record(*(candidate(clauses, f"c{n}") for n in range(40))))
    plotted = plots(report, axis(report), {})
    assert len(plotted) == 40
    assert {len(plot.lanes) for plot in plotted} == {30}
    assert plotted[0].lanes[0].slug == "mask.c59"
    assert plotted[0].left_out == "30 clauses further below the bound left out"


def test_each_attention_of_a_model_has_a_line() -> None:
    """With the verdict on what stands for it, and its failures, the model's that blame it too."""
    ((name, lines),) = columns(complete(RECORDS["model"]), {})
    assert (name, [line.index for line in lines]) == ("bert", [0, 1, 2, 3])
    assert [line.verdict for line in lines] == ["conforms", "conforms", "fails", "conforms"]
    assert [line.judged_as for line in lines] == [None, 0, None, 0]
    assert [line.wrong for line in lines] == [False, False, True, True]
    assert [line.first for line in lines] == [False, False, True, False]
    assert lines[3].links == [("model.mask-reaches-all", "")]
    assert (len(lines[2].links), lines[2].left_out) == (4, 3)
    assert columns(complete(RECORDS["several"]), {}) == []


def test_the_attention_to_be_mended_comes_before_its_model() -> None:
    """Causes with a fix first, and those of a SHOULD behind all of a MUST."""
    model, should, named = (
        result("failed", "model.sites-in-place", violation=Violation(kind="value", message="off")),
        result("failed", "mask.int-nonzero", violation=Violation(kind="value", message="odd")),
        result(
            "failed",
            "numerics.scale",
            violation=Violation(kind="value", message="off by 1"),
            diagnosis=[{"name": "scale-missing", "text": "t", "fix": "scale", "confidence": 1.0}],
        ),
    )
    every = {"m": model, "m#0": should, "m#1": named}
    entries = [candidate([shown], name) for name, shown in every.items()]
    entries[-1]["site"] = site(1, scope="layers.1.attention")
    text = page(record(*entries)).text
    causes = text[text.rindex("Causes") : text.rindex("About this run")]
    names = ("scale-missing", "layers.1.attention", "sites-in-place", "int-nonzero")
    first = [causes.index(name) for name in names]
    assert first == sorted(first)


def test_causes_stand_before_what_was_assumed() -> None:
    """Warnings and assumptions follow the causes; the list is closed where there are some."""
    declaration = {"kind": "layer", "assumptions": ["x is the query"]}
    one = candidate([FAILED], declaration=declaration, warnings=["look out"])
    shown = render_html(record(one))
    assert shown.index('id="causes"') < shown.index("look out") < shown.index("x is the query")
    assert '<details class="assumed"><summary>' in shown


def test_equal_causes_of_several_candidates_are_told_once() -> None:
    """One cause with its fix and the list of those that have it, behind table and navigation."""
    good = candidate([result()], "good")
    wrong = [candidate([FAILED, SHOULD_FAILED], f"wrong_{number}") for number in range(3)]
    shown = render_html(record(good, *wrong))
    causes = shown[shown.index('aria-labelledby="causes"') : shown.index('id="failures"')]
    assert causes.count("scale-missing: no scale") == 1
    assert causes.count("divide by it") == 1
    assert "3 candidates" in causes
    assert all(f'href="#of-{number}"' in causes for number in (2, 3, 4))
    assert shown.count('id="of-2"') == 1
    assert shown.index("<nav ") < shown.index('id="candidates"') < shown.index('id="causes"')
    table = shown[shown.index('class="plain candidates"') : shown.index('id="causes"')]
    assert table.rindex("wrong") < table.index("good")
    folded = causes[causes.index('<details class="recommended">') :]
    assert "1 recommendation not followed" in folded
    assert "mask.no-leak" in folded
    assert causes.index("mask.no-leak") > causes.index("recommended")


def test_recommendations_are_open_where_a_run_fails_for_them() -> None:
    """With --strict what fails a SHOULD is no aside."""
    shown = render_html({**record(candidate([SHOULD_FAILED])), "fail_on": "should"})
    assert '<details class="recommended" open>' in shown
