"""Refusals whose whole sentence is tested."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager

import pytest


def refused(message: str, error: type[Exception] = ValueError) -> AbstractContextManager[object]:
    """Expect an exception whose message is this sentence, all of it."""
    return pytest.raises(error, match=f"^{re.escape(message)}$")
