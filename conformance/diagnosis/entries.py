"""Entries of the report, which name a mistake or say that it has no name."""

from __future__ import annotations

from typing import Any

from ..base.mistake import UNKNOWN

Entry = dict[str, Any]


def named_entry(name: str, text: str, fix: str, confidence: float = 1.0, **more: Any) -> Entry:
    """Return the report's entry of a mistake."""
    return {"name": name, "text": text, "fix": fix, "confidence": confidence, **more}


def unnamed_entry(text: str, facts: dict[str, Any] | None = None, **more: Any) -> Entry:
    """Return the report's entry where no name was found, with the reason."""
    return named_entry(UNKNOWN, text, "", 0.0, facts=facts or {}, **more)
