from __future__ import annotations

from typing import Any

from browsing import PHONE, Opener
from failing_records import failing
from view_records import EVERY, NASTY, candidate, of, record

from conformance.session.comparing import ComparedRecord, joined
from conformance.views.html import render_comparison as render_html


def two_sources() -> dict[str, Any]:
    """A run over two cores, side by side with a record of every kind of failure."""
    other = ComparedRecord(name=f"{NASTY}.json", record={**of(*EVERY), "seed": 7})
    return joined([ComparedRecord(name="this run", record=failing()), other])


def test_it_is_quiet_and_fits(opener: Opener) -> None:
    """No message, no request, and nothing stands out of a phone, in the dark either."""
    for size, scheme in ((None, "light"), (PHONE, "dark")):
        opened = opener(render_html(two_sources()), size=size, scheme=scheme)  # type: ignore[arg-type]
        opened.open_all()
        opened.check_quiet()
        assert opened.overflow == 0


def test_clauses_can_be_read_on_a_phone(opener: Opener) -> None:
    """However many candidates stand beside each other, the names of clauses have their room."""
    four = record(*(candidate(EVERY if n % 2 else [], f"candidate-{n}") for n in range(4)))
    page = opener(render_html(four), size=PHONE).page
    widths = [cell.bounding_box() for cell in page.locator("table.side th[scope=row]").all()]
    shown = [box["width"] for box in widths if box and box["width"]]  # not in closed details
    assert shown
    assert min(shown) > 100


def test_differences_are_marked_without_colour(opener: Opener) -> None:
    """What another candidate declares otherwise has a sign, and a word for screen readers."""
    report = record(
        candidate([], "a", declaration={"causal": "top-left"}),
        candidate([], "b", declaration={"causal": "bottom-right"}),
    )
    page = opener(render_html(report)).page
    first, other = page.locator("table.side").first.locator("tbody tr").first.locator("td").all()
    assert first.text_content() == "top-left"
    assert (other.text_content() or "").strip() == "≠ differs: bottom-right"


def test_it_keeps_the_rules_of_accessibility(opener: Opener) -> None:
    """Axe finds nothing in light, and no lack of contrast in the dark."""
    opened = opener(render_html(two_sources()))
    assert opened.violations() == []
    opened.page.emulate_media(color_scheme="dark")
    assert opened.violations("color-contrast") == []
