"""A headless Chromium for the tests of pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from browsing import Opener
from playwright.sync_api import Browser, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """The Chromium of this machine; a gate without one is red, elsewhere its tests are skipped."""
    executable = next(filter(None, map(shutil.which, _NAMES)), None)
    if executable is None:
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail("the pages cannot be tested: no Chromium is installed")
        pytest.skip("no Chromium is installed")
    # Containers give no namespaces for its sandbox; all it opens is what these tests write.
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opener(chromium: Browser, tmp_path: Path) -> Iterator[Opener]:
    """Opens pages from files, and closes them after the test."""
    made = Opener(browser=chromium, folder=tmp_path)
    yield made
    made.close()
