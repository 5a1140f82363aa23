"""The table of views: what each is called, what it is for, and the function that renders it.

A view is a pure function of the record. The commands build their options from this table
(:mod:`conformance.cli._output`), so a view is added here and nowhere else. Renderers are named,
not imported: a page template or rich is loaded when its view is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

Record = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class View:
    """One format that a record can be shown in.

    name
        The option without its dashes: ``junit`` for ``--junit FILE``.
    renderer
        ``module:function`` in this package; the function takes a record and returns the text.
    said
        The help of the option, one sentence.
    """

    name: str
    renderer: str
    said: str

    @property
    def option(self) -> str:
        """The option of the command line."""
        return f"--{self.name}"

    @property
    def parameter(self) -> str:
        """What click hands the option's value over as."""
        return f"{self.name}_path"

    def render(self, record: Record) -> str:
        """The record in this format."""
        module, _, function = self.renderer.partition(":")
        found = getattr(importlib.import_module(f"{__package__}.{module}"), function)
        return cast("Callable[[Record], str]", found)(record)


VIEWS: Final = (
    View(name="html", renderer="html:render_html", said="Write one self-contained page."),
    View(
        name="markdown",
        renderer="markdown:render_markdown",
        said="Write markdown, for a pull request or a step summary.",
    ),
    View(
        name="sarif",
        renderer="sarif:render_sarif",
        said="Write SARIF 2.1.0, for code scanning.",
    ),
    View(
        name="junit",
        renderer="junit:render_junit",
        said="Write JUnit XML, for test reports of Jenkins, GitLab and others.",
    ),
    View(
        name="ctrf",
        renderer="ctrf:render_ctrf",
        said="Write CTRF, the Common Test Report Format.",
    ),
    View(
        name="badge",
        renderer="badge:render_badge",
        said="Write the JSON of a shields.io endpoint badge.",
    ),
)
# For `render` alone: `check` shows it anyway.
TERMINAL: Final = View(
    name="terminal",
    renderer="terminal:render_terminal",
    said="Write what a terminal would show, as plain text.",
)
# The views of a comparison, whose record has the candidates of several runs.
COMPARED: Final = (
    View(
        name="html",
        renderer="comparison_html:render_html",
        said="Write one self-contained page.",
    ),
    View(
        name="markdown",
        renderer="comparison_markdown:render_markdown",
        said="Write markdown, for a pull request or a README.",
    ),
)
