"""Pages opened from files in a headless Chromium, and what they did there."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import Browser, BrowserContext, Page

PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 900}
# Milliseconds to wait for what should be there at once: machines of a gate are busy.
PATIENCE = 120_000
# Text that stands out of the window, or an element that is wider than it.
_OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@dataclass(kw_only=True)
class Opened:
    """A page, its messages and its requests: its own file is the only one it may request."""

    page: Page
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    @property
    def overflow(self) -> int:
        """By how many pixels the page is wider than its window."""
        return int(self.page.evaluate(_OVERFLOW))

    def check_quiet(self) -> None:
        """Require that there was no message, no error and no request but for the file itself."""
        assert self.console == []
        assert [url for url in self.requests if url != self.page.url.partition("#")[0]] == []

    def open_all(self) -> None:
        """Open everything that can be opened."""
        self.page.evaluate(
            "document.querySelectorAll('details').forEach((element) => element.open = true)"
        )

    def violations(self, *rules: str) -> list[str]:
        """What axe finds against the rules of accessibility, all of them unless some are named."""
        self.page.evaluate(_axe())
        options = {"runOnly": list(rules)} if rules else {}
        report: dict[str, Any] = self.page.evaluate("(how) => axe.run(document, how)", options)
        return [
            f"{rule['id']}: {node['html'][:120]}"
            for rule in report["violations"]
            for node in rule["nodes"]
        ]


@functools.cache
def _axe() -> str:
    spec = find_spec("axe_playwright_python")
    assert spec is not None
    assert spec.origin is not None
    (source,) = Path(spec.origin).parent.rglob("axe.min.js")
    return source.read_text(encoding="utf-8")


@dataclass(kw_only=True)
class Opener:
    """Opens texts as pages, each in a window of its own."""

    browser: Browser
    folder: Path
    contexts: list[BrowserContext] = field(default_factory=list)

    def __call__(
        self,
        text: str,
        *,
        scheme: Literal["light", "dark"] = "light",
        size: dict[str, int] | None = None,
        script: bool = True,
    ) -> Opened:
        """The page of a text, opened from a file."""
        path = self.folder / f"page{len(self.contexts)}.html"
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
        context = self.browser.new_context(
            viewport=size or DESK,  # type: ignore[arg-type]
            color_scheme=scheme,
            reduced_motion="reduce",
            java_script_enabled=script,
            offline=True,
        )
        context.set_default_timeout(PATIENCE)
        self.contexts.append(context)
        opened = Opened(page=context.new_page())
        opened.page.on("console", lambda said: opened.console.append(said.text))
        opened.page.on("pageerror", lambda error: opened.console.append(str(error)))
        opened.page.on("request", lambda request: opened.requests.append(request.url))
        opened.page.goto(path.as_uri())
        return opened

    def close(self) -> None:
        """Close every window."""
        for context in self.contexts:
            context.close()


def visible_texts(page: Page, selector: str) -> Sequence[str]:
    """The texts of the visible elements."""
    return [
        element.inner_text() for element in page.locator(selector).all() if element.is_visible()
    ]
