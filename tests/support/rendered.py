"""Markdown as GitHub's own library renders it, read back as tags and text."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Final

import cmarkgfm

# HTML is kept: a test shows what must not get through.
_OPTIONS: Final = cmarkgfm.cmark.Options.CMARK_OPT_UNSAFE


class Reading(HTMLParser):
    """The tags and the text of a page, and the text of what is no code."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.prose = ""
        self._open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, _attributes: object) -> None:
        """Note a tag."""
        self.tags.append(tag)
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Leave a tag."""
        if tag in self._open:
            self._open.remove(tag)

    def handle_data(self, data: str) -> None:
        """Note a text."""
        self.text += data
        if not {"code", "pre"} & set(self._open):
            self.prose += data


def html(markdown: str) -> str:
    """What GitHub's own library makes of it."""
    made: str = cmarkgfm.github_flavored_markdown_to_html(markdown, _OPTIONS)
    return made


def rendered(markdown: str) -> Reading:
    """The same, read."""
    return Reading(html(markdown))
