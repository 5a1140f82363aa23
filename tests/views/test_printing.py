from __future__ import annotations

import io
import os
import re
import sys

import pytest
from records import result
from view_records import EVERY, RECORDS, candidate, record

from conformance.views.terminal import render_terminal, show

FOUND = record(candidate(EVERY), candidate([result(slug="mask.a-rather-long-slug-it-is")], "yours"))
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def on_pipe() -> str:
    """What is written where nobody's terminal is."""
    file = io.StringIO()
    show(FOUND, file)
    return file.getvalue()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
class TestTerminal:
    """A terminal of a size, as the system sees it."""

    @staticmethod
    def shown(columns: int) -> str:
        """What a terminal of so many columns gets."""
        import pty  # noqa: PLC0415 (not on Windows)
        import termios  # noqa: PLC0415

        master, terminal = pty.openpty()
        termios.tcsetwinsize(terminal, (40, columns))
        with os.fdopen(terminal, "w", encoding="utf-8") as file:
            read = os.fdopen(os.dup(master), "rb", buffering=0)
            text = _drained(file, read, master)
        return text.replace("\r\n", "\n")

    @pytest.mark.parametrize("columns", [40, 80, 200])
    @pytest.mark.parametrize("term", ["xterm-256color", "dumb"])
    def test_width(self, monkeypatch: pytest.MonkeyPatch, columns: int, term: str) -> None:
        """Lines fit the terminal, a dumb one too, and slugs stay whole."""
        monkeypatch.setenv("TERM", term)
        text = COLOUR.sub("", self.shown(columns))
        assert max(map(len, text.splitlines())) <= columns
        for clause in EVERY:
            told = (
                clause.level == "MUST" or clause.status != "failed"
            )  # recommendations are counted
            if told and clause.status not in ("passed", "not-applicable"):
                assert clause.id in text

    def test_colour(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A terminal gets colours unless NO_COLOR or TERM=dumb refuse them, and then no bold."""
        monkeypatch.setenv("TERM", "xterm-256color")
        assert COLOUR.search(self.shown(80))
        monkeypatch.setenv("NO_COLOR", "1")
        assert "\x1b" not in self.shown(80)
        monkeypatch.setenv("NO_COLOR", "")
        assert COLOUR.search(self.shown(80))
        monkeypatch.setenv("TERM", "dumb")
        assert "\x1b" not in self.shown(80)


def _drained(file: io.TextIOBase, read: io.FileIO, descriptor: int) -> str:
    """What is written into a pseudo-terminal, read by a thread so that it never fills up."""
    import threading  # noqa: PLC0415 (only here)

    output = bytearray()

    def drain() -> None:
        while chunk := _chunk(read):
            output.extend(chunk)

    thread = threading.Thread(target=drain)
    thread.start()
    show(FOUND, file)
    file.close()
    thread.join(timeout=30)
    read.close()
    os.close(descriptor)
    return output.decode()


def _chunk(read: io.FileIO) -> bytes:
    try:
        return read.read(65536) or b""
    except OSError:  # Linux says so where the other side is closed
        return b""


def test_pipes_get_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """No control sequence and whole lines; FORCE_COLOR adds colours but breaks no line."""
    plain = on_pipe()
    assert "\x1b" not in plain
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    coloured = on_pipe()
    assert COLOUR.search(coloured)
    assert [line.rstrip() for line in COLOUR.sub("", coloured).splitlines()] == plain.splitlines()
    monkeypatch.setenv("NO_COLOR", "1")
    assert on_pipe() == plain


@pytest.mark.parametrize(
    ("columns", "longest"), [("50", 50), ("nonsense", None), ("0", None), ("9" * 5000, None)]
)
def test_columns(monkeypatch: pytest.MonkeyPatch, columns: str, longest: int | None) -> None:
    """COLUMNS asks for a width on a pipe, too; what is no number asks for nothing."""
    whole = on_pipe()
    monkeypatch.setenv("COLUMNS", columns)
    if longest is None:
        assert on_pipe() == whole
    else:
        assert max(map(len, on_pipe().splitlines())) <= longest


def test_the_view_is_always_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """``render --terminal FILE`` depends on nothing but the record."""
    plain = render_terminal(FOUND)
    for name, value in {"FORCE_COLOR": "1", "COLUMNS": "50", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    assert render_terminal(FOUND) == plain
    assert "\x1b" not in plain


@pytest.mark.parametrize("name", RECORDS)
def test_every_record_is_shown(name: str) -> None:
    """Also one of an older version, and one full of control sequences."""
    text = render_terminal(RECORDS[name])
    assert text.strip()
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", text)
