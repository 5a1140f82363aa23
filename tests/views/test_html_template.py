from __future__ import annotations

import base64
import hashlib
import re

import jinja2
import pytest

from conformance.views.html_words import environment, rendered, resource

TEMPLATES = ("run.html.jinja", "comparison.html.jinja", "teeth.html.jinja", "failure.html.jinja")
HOSTILE = "<script>alert(1)</script>\"'&"


@pytest.fixture
def page() -> str:
    """The frame of every page around nothing, with facts that nobody would write."""
    return rendered(
        "page.html.jinja",
        record={"tool": {"name": HOSTILE, "version": HOSTILE}},
        facts=[(HOSTILE, HOSTILE)],
    )


def test_what_a_record_says_is_escaped(page: str) -> None:
    """In texts and in attributes: the only script of a page is ours."""
    assert page.count("<script>") == 1
    assert page.count("alert(1)") == page.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 3
    assert "&#34;&#39;&amp;" in page


def test_the_policy_allows_the_script_of_the_page_alone(page: str) -> None:
    """The hash is that of what stands between the tags, byte for byte; nothing may be fetched."""
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert script
    assert policy
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    directives = policy[1].replace("&#39;", "'").split("; ")
    assert f"script-src 'sha256-{digest}'" in directives
    assert "default-src 'none'" in directives
    assert "img-src data:" in directives


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_template_compiles(name: str) -> None:
    """A mistake in a template is found without a record that reaches its line."""
    assert environment().get_template(name).name == name


def test_what_is_missing_is_no_empty_text() -> None:
    """A template that names what nobody gives is a mistake of ours, not a gap in the page."""
    with pytest.raises(jinja2.UndefinedError, match="tool"):
        rendered("page.html.jinja", record={}, facts=[])


def test_style_and_script_could_not_end_their_elements() -> None:
    """They are put in as they are."""
    assert "</" not in resource("page.css")
    assert "</script" not in resource("page.js")
