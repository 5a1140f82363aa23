"""Formats of a record, each a pure function of it, and the table of them.

Terminal, HTML, Markdown, SARIF, JUnit, CTRF, a badge and GitHub's annotations; of two records the
difference, of several a comparison. The commands build their options from the table
(:mod:`conformance.cli._output`), so a view is added here and nowhere else. Renderers are named, not
imported: a view loads a page template or rich only when it is rendered.

May import ``base`` alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from .complete import Record


@dataclass(frozen=True)
class View:
    """One format for showing a record.

    name
        The option without its dashes: ``junit`` for ``--junit FILE``.
    renderer
        ``module:function`` in this package; the function takes a record and returns the text.
    help
        The help of the option, one sentence.
    """

    name: str
    renderer: str
    help: str

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
        renderer = getattr(importlib.import_module(f"{__package__}.{module}"), function)
        return cast("Callable[[Record], str]", renderer)(record)


VIEWS: Final = (
    View("html", "html:render_html", "Write one self-contained page."),
    View(
        "markdown",
        "markdown:render_markdown",
        "Write markdown, for a pull request or a step summary.",
    ),
    View("sarif", "sarif:render_sarif", "Write SARIF 2.1.0, for code scanning."),
    View(
        "junit",
        "junit:render_junit",
        "Write JUnit XML, for test reports of Jenkins, GitLab and others.",
    ),
    View("ctrf", "ctrf:render_ctrf", "Write CTRF, the Common Test Report Format."),
    View("badge", "github:render_badge", "Write the JSON of a shields.io endpoint badge."),
)
# For `render` alone, with a choice of detail: `check` shows it anyway.
TERMINAL: Final = View(
    "terminal", "terminal:render_terminal", "Write what a terminal shows, as plain text."
)
# The views of a comparison, whose record has the candidates of several runs.
COMPARED: Final = (
    View("html", "html:render_comparison", "Write one self-contained page."),
    View(
        "markdown",
        "comparison:render_comparison_markdown",
        "Write markdown, for a pull request or a README.",
    ),
)
