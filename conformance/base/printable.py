"""Texts from a candidate, made harmless to a terminal."""

from __future__ import annotations

from typing import Any, Final

_KEPT: Final = "\n\t"


def printable(text: str) -> str:
    r"""The text with what is not printable, such as an escape sequence or a NUL, as ``\x1b``.

    Newlines and tabs stay. Doing it twice changes nothing: backslashes stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(
        sign
        if sign.isprintable() or sign in _KEPT
        else sign.encode("unicode_escape", errors="surrogatepass").decode("ascii")
        for sign in text
    )


def printable_record(data: Any) -> Any:
    """Plain data with every text in it made printable."""
    if isinstance(data, str):
        return printable(data)
    if isinstance(data, dict):
        return {printable_record(key): printable_record(value) for key, value in data.items()}
    if isinstance(data, list):
        return [printable_record(value) for value in data]
    return data
