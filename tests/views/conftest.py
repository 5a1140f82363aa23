"""A headless Chromium for the tests of pages."""

from opened_pages import chromium, opener

__all__ = ["chromium", "opener"]
