from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from browsing import DESK, PHONE, Opened, Opener, visible_texts
from failing_records import entry, failing
from playwright.sync_api import Page
from records import result
from view_records import EVERY, NASTY, PICTURED, RECORDS, STALE, candidate, of, record

from conformance.views.html import render_html

ROWS = "#clause-table tr.r"
EVERYTHING = record(candidate(EVERY), candidate(EVERY[1:3], "yours"), stale=[STALE])


def rows(page: Page) -> list[str]:
    """The slugs of the rows that can be seen."""
    return [text.split()[0] for text in visible_texts(page, f"{ROWS} th")]


def count(page: Page) -> str:
    """What the live region says."""
    return page.locator("#row-count").inner_text()


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", RECORDS)
def test_no_page_complains_or_asks_for_anything(opener: Opener, name: str) -> None:
    """Every record's page opens from its file without a message, an error or a request."""
    opened = opener(render_html(RECORDS[name]))
    opened.check_quiet()
    assert opened.page.locator("h1").is_visible()
    assert opened.page.evaluate("document.compatMode") == "CSS1Compat"


def test_hostile_texts_do_nothing(opener: Opener) -> None:
    """No message runs as a script, and every one can be read."""
    opened = opener(render_html(RECORDS["nasty"]))
    opened.page.on("dialog", lambda dialog: opened.console.append(dialog.message))
    opened.page.get_by_role("button", name="Expand all").click()
    assert "<script>alert(1)</script>" in opened.page.locator("details.failure").inner_text()
    opened.check_quiet()


def test_a_script_that_got_in_would_not_run(opener: Opener) -> None:
    """The policy of the page lets its one script run and no other."""
    text = render_html(of()).replace("</body>", "<script>window.intruder = 1</script></body>")
    opened = opener(text)
    assert opened.page.evaluate("window.intruder") is None
    assert any("Content Security Policy" in said for said in opened.console)


def test_search_filters_as_one_types(opener: Opener) -> None:
    """Slash leads to the search; words narrow the table; Escape brings everything back."""
    page = opener(render_html(EVERYTHING)).page
    everything = len(rows(page))
    page.keyboard.press("/")
    page.keyboard.type("mask bound")
    assert rows(page) == ["mask.causal", "mask.leak"]
    assert count(page) == f"2 of {everything} results"
    page.keyboard.press("Escape")
    assert len(rows(page)) == everything


def test_search_knows_requirements_and_candidates(opener: Opener) -> None:
    """A word of a requirement that no row shows finds its clause, and so does a name."""
    page = opener(render_html(EVERYTHING)).page
    page.locator("#search").fill("absent")
    assert set(rows(page)) == {"mask.golden"}
    page.locator("#search").fill("yours")
    assert set(rows(page)) == {"shape.output", "mask.bias"}


def test_filters_work_by_keyboard(opener: Opener) -> None:
    """Boxes are reached with Tab and chosen with Space; groups narrow each other."""
    page = opener(render_html(EVERYTHING)).page
    page.keyboard.press("/")
    page.keyboard.press("Tab")
    focused = "document.activeElement.value"
    while page.evaluate(focused) != "fail":
        page.keyboard.press("Tab")
    page.keyboard.press("Space")
    assert set(visible_texts(page, f"{ROWS} .pill")) == {"failed"}
    page.get_by_role("checkbox", name="SHOULD 2").check()
    assert rows(page) == []
    assert page.get_by_text("Nothing matches").is_visible()
    page.locator("#clear").click()
    assert len(rows(page)) > 5


def test_choices_of_one_group_add_up(opener: Opener) -> None:
    """Two families show the clauses of both."""
    page = opener(render_html(EVERYTHING)).page
    for name in ("shape", "numerics"):
        page.locator(f'fieldset[data-filter="family"] input[value="{name}"]').check()
    assert set(rows(page)) == {"shape.output", "numerics.golden"}


def test_counts_are_announced(opener: Opener) -> None:
    """The number of results is in a live region that a screen reader speaks politely."""
    row_count = opener(render_html(EVERYTHING)).page.locator("#row-count")
    assert row_count.get_attribute("aria-live") == "polite"
    assert row_count.get_attribute("role") == "status"


def test_failures_open_by_keyboard(opener: Opener) -> None:
    """Enter on a failure shows its requirement, tensors and replay."""
    page = opener(render_html(failing())).page
    first = page.locator("details.failure").first
    assert not first.get_by_text("mask.golden'").is_visible()
    first.locator("summary").focus()
    page.keyboard.press("Enter")
    assert first.get_by_text("mask.golden'").is_visible()
    assert first.locator(".heat.ratio td.r5, .heat.ratio td.r6").first.is_visible()
    assert first.locator(".heat.weight").count() == 2


def test_a_link_opens_what_it_leads_to(opener: Opener) -> None:
    """From a row, from the matrix and from a plot one gets to the open failure, focus and all."""
    page = opener(render_html(failing())).page
    for place in (ROWS, "table.matrix", "table.lanes"):
        page.get_by_role("button", name="Collapse all").click()
        link = page.locator(f"{place} a").first
        link.focus()
        page.keyboard.press("Enter")
        page.locator("details.failure[open] > summary:focus").wait_for()


def test_light_and_dark(opener: Opener) -> None:
    """The page follows the system, and the button overrules it, also after a reload."""
    ground = "getComputedStyle(document.body).backgroundColor"
    opened = opener(render_html(failing()), scheme="dark")
    page = opened.page
    dark = page.evaluate(ground)
    assert opener(render_html(failing())).page.evaluate(ground) != dark
    button = page.locator("#theme")
    assert button.inner_text() == "Theme: automatic"
    button.click()
    button.click()
    assert button.inner_text() == "Theme: light"
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    page.reload()
    for wait in range(100, 1100, 100):  # what a page stores is lost if its process ends too soon
        if page.evaluate(ground) == "rgb(255, 255, 255)":
            break
        while button.inner_text() != "Theme: light":
            button.click()
        page.wait_for_timeout(wait)
        page.reload()
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    opened.check_quiet()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["nasty", "several", "every status", "model", "failing"])
def test_nothing_stands_out_of_a_phone(opener: Opener, name: str) -> None:
    """390 pixels are enough for everything, opened or not: only matrices scroll, in their frame."""
    report = failing() if name == "failing" else RECORDS[name]
    opened = opener(render_html(report), size=PHONE)
    assert opened.overflow == 0
    opened.open_all()
    assert opened.overflow == 0


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("size", "scheme"), [(PHONE, "dark"), (DESK, "light")], ids=["phone", "desk"]
)
def test_a_model_is_a_column_of_its_attentions(
    opener: Opener, size: dict[str, int], scheme: Literal["light", "dark"]
) -> None:
    """Green and red in the order of execution; the first red one is marked, and leads on."""
    opened = opener(render_html(RECORDS["model"]), size=size, scheme=scheme)
    page = opened.page
    lines = page.locator(".sites li")
    tops = [box["y"] for line in lines.all() if (box := line.bounding_box())]
    assert tops == sorted(tops)
    colour = "(line) => getComputedStyle(line.querySelector('.place')).color"
    colours = [line.evaluate(colour) for line in lines.all()]
    assert colours[0] == colours[1] != colours[2] == colours[3]
    assert visible_texts(page, ".sites .pill") == ["conforms", "conforms", "wrong", "wrong"]
    (marked,) = lines.filter(has_text="the first that is wrong").all()
    assert marked.locator(".place").inner_text() == "2"
    lines.nth(3).get_by_role("link", name="model.mask-reaches-all").click()
    page.locator("details.failure[open] > summary:focus").wait_for()
    assert "no mask reaches attention #3" in page.locator("details.failure[open]").inner_text()
    assert opened.violations() == []
    opened.check_quiet()


def test_it_keeps_the_rules_of_accessibility(opener: Opener) -> None:
    """Axe finds nothing: contrast, names of controls, headers of tables, landmarks."""
    report = record(entry("inverted"), candidate(EVERY), stale=[STALE])
    opened = opener(render_html(report), scheme="light")
    opened.open_all()
    assert opened.violations() == []
    opened.page.emulate_media(color_scheme="dark")
    assert opened.violations("color-contrast") == []


def test_it_reads_without_its_script(opener: Opener) -> None:
    """Where scripts are forbidden everything is there but search, filters and the button."""
    page = opener(render_html(failing()), script=False).page
    assert len(rows(page)) == 4
    assert not page.locator("#filters").is_visible()
    assert not page.locator("#theme").is_visible()
    page.locator("details.failure > summary").first.click()
    assert page.get_by_text("mask-inverted:").first.is_visible()


def test_the_bound_is_marked(opener: Opener) -> None:
    """What failed stands to the right of the bound, what passed to the left, on a common axis."""
    page = opener(render_html(failing())).page
    for details in page.locator("#margins ~ details").all():
        details.evaluate("(one) => { one.open = true }")
    bound = page.locator("table.lanes").first.evaluate(
        "(one) => parseFloat(getComputedStyle(one).getPropertyValue('--bound'))"
    )
    failed, passed = (
        page.locator(f"table.lanes tr{which} use").first.get_attribute("x")
        for which in (".over", ":not(.over)")
    )
    assert failed is not None
    assert passed is not None
    assert float(passed.rstrip("%")) < bound < float(failed.rstrip("%"))
    assert page.locator("table.lanes .at-bound").first.text_content() == "bound"


def screenshot(opened: Opened, folder: Path, name: str) -> Path:
    """The picture of what can be seen."""
    path = folder / f"{name}.png"
    opened.page.screenshot(path=path)
    return path


def test_pictures_are_taken(opener: Opener, tmp_path: Path) -> None:
    """Light, dark and narrow differ, and each is a picture of a page with something on it."""
    text = render_html(record(entry("inverted"), entry("right", NASTY)))
    pictures = [
        screenshot(opener(text), tmp_path, "light"),
        screenshot(opener(text, scheme="dark"), tmp_path, "dark"),
        screenshot(opener(text, size=PHONE), tmp_path, "phone"),
    ]
    read = [path.read_bytes() for path in pictures]
    assert len(set(read)) == len(pictures)
    assert all(data.startswith(b"\x89PNG") and len(data) > 10_000 for data in read)
    widths = [int.from_bytes(data[16:20]) for data in read]
    assert widths == [DESK["width"], DESK["width"], PHONE["width"]]


def test_a_picture_can_be_seen(opener: Opener) -> None:
    """Hidden keys are hatched and said; the picture is named by its caption."""
    opened = opener(render_html(RECORDS["pictured"]))
    opened.open_all()
    figure = opened.page.locator("details.failure figure.picture")
    assert figure.count() == 1
    assert figure.locator("table").count() == 6
    hidden, shown = (
        figure.locator(cells).first.evaluate("(one) => getComputedStyle(one).backgroundImage")
        for cells in ("td.hid", "td:not(.hid)")
    )
    assert "gradient" in hidden
    assert shown == "none"
    assert figure.locator("td.hid").nth(1).inner_text().split() == ["0", "hidden"]
    assert figure.locator("tbody th").first.inner_text() == "4"
    named = opened.page.get_by_role("figure", name="the next key is seen")
    assert named.count() == 1


def test_another_failure_leads_to_the_picture(opener: Opener) -> None:
    """The second failure of the same mistake has a link to the first, which then is open."""
    page = opener(render_html(RECORDS["pictured"])).page
    first, second = page.locator("details.failure").all()
    second.locator("summary").click()
    second.get_by_role("link", name="mask.causal").click()
    assert first.locator("figure.picture").is_visible()


def test_a_page_opens_with_the_picture_of_its_cause(opener: Opener) -> None:
    """Cause, fix and picture stand above everything that must be opened."""
    page = opener(render_html(RECORDS["pictured"]), size=PHONE).page
    cause = page.locator(".causes li")
    assert cause.locator("figure.picture").is_visible()
    assert cause.get_by_text("query 4 gives the hidden key 8 the weight 0.5").is_visible()
    assert page.locator("details.failure figure.picture").first.is_hidden()


def sheets(opened: Opened) -> int:
    """The pages of paper that a page is printed on."""
    return len(re.findall(rb"/Type\s*/Page\b", opened.page.pdf(format="A4")))


def test_a_failing_candidate_is_printed_on_three_sheets(opener: Opener) -> None:
    """Verdict, causes, their pictures and the failures; clauses and matrices stay on the screen."""
    clauses = [result(slug=f"family{n % 9}.clause-{n}", margin=0.5) for n in range(150)]
    failures = [replace(one, id=f"mask.failure-{n}") for n, one in enumerate(PICTURED * 8)]
    text = render_html(record(candidate([*EVERY, *failures, *clauses])))
    opened = opener(text)
    assert 1 <= sheets(opened) <= 3
    opened.page.emulate_media(media="print")
    assert opened.page.locator(".causes li").first.is_visible()
    assert opened.page.locator("#clause-table").is_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_long_names_are_broken_at_their_joints(
    opener: Opener, scheme: Literal["light", "dark"]
) -> None:
    """On a phone no name of the table is cut in a word, and nothing is wider than the window."""
    entries = [candidate(EVERY, f"torch_scaled_dot_product_attention_of_{n}") for n in range(15)]
    opened = opener(render_html(record(*entries)), size=PHONE, scheme=scheme)
    assert opened.overflow == 0
    pieces = opened.page.evaluate(
        """[...document.querySelectorAll(".candidates th bdi")].flatMap((name) =>
            [...name.childNodes].filter((node) => node.nodeType === 3).map((node) => {
                const range = document.createRange();
                range.selectNodeContents(node);
                return range.getClientRects().length;
            }))"""
    )
    assert len(pieces) > len(entries)
    assert set(pieces) == {1}


def test_short_names_are_left_whole(opener: Opener) -> None:
    """A name that fits on any line is broken nowhere, neither in the table nor above it."""
    entries = [candidate(EVERY, f"attention_of_a_long_name_{n}") for n in range(3)]
    opened = opener(render_html(record(*entries)), size=PHONE)
    assert opened.overflow == 0
    names = ".candidates th > a wbr, .candidates th > bdi wbr, .why wbr"
    assert opened.page.locator(names).count() == 0
