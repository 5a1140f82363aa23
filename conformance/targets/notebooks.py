"""The code cells of a notebook as Python, each with the name that frames give its place."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..errors import UsageError

SUFFIX: Final = ".ipynb"
# Magics of a whole cell after which the rest of the cell is Python that runs as it stands.
_AROUND_PYTHON: Final = frozenset("time timeit capture prun".split())
_SHELL: Final = re.compile(r"(\s*)(?:[%!?].*|[\w.]+\s*=\s*[%!].*|[\w.]+\?\??\s*)")


@dataclass(frozen=True)
class Cell:
    """A code cell: ``file`` is its file name in frames, ``text`` is Python alone."""

    file: str
    text: str


def is_notebook(path: str | Path) -> bool:
    """Whether a path is a notebook's."""
    return str(path).lower().endswith(SUFFIX)


def is_cell(file: str) -> bool:
    """Whether a frame's file name is a cell's."""
    return f"{SUFFIX}, cell " in file


def cells_of(path: Path) -> list[Cell]:
    """The code cells of a notebook; raises UsageError for a file that is none, or not Python.

    The first cell, of whatever kind, has the number 1. Lines for IPython alone are blank.
    """
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        listed = notebook["cells"] if "cells" in notebook else notebook["worksheets"][0]["cells"]
        cells = list(_code_cells(path, listed))
        metadata = notebook.get("metadata", {})
        language = metadata.get("kernelspec", {}).get("language", "python")
    except OSError as error:
        msg = f"{path.name} cannot be read: {error.strerror}"
        raise UsageError(msg) from None
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        msg = f"{path.name} is no notebook that can be read: save it again with Jupyter"
        raise UsageError(msg) from None
    if str(language).lower() not in ("python", "python3"):
        msg = f"{path.name} is a notebook in {language}, not in Python"
        raise UsageError(msg)
    return cells


def _code_cells(path: Path, listed: list[dict[str, Any]]) -> Iterator[Cell]:
    for number, cell in enumerate(listed, start=1):
        if cell["cell_type"] == "code":
            source = cell["source"] if "source" in cell else cell["input"]  # of nbformat 3
            text = source if isinstance(source, str) else "".join(source)
            yield Cell(f"{path}, cell {number}", _python_of(text))


def _python_of(text: str) -> str:
    """The text of a cell without IPython's own syntax, on unchanged line numbers."""
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        pass
    else:
        return text
    lines = text.split("\n")
    first = next((number for number, line in enumerate(lines) if line.strip()), 0)
    if lines[first].startswith("%%"):
        if lines[first][2:].split(" ")[0].strip() not in _AROUND_PYTHON:
            return ""
        lines[first] = ""
    matches = [_SHELL.fullmatch(line) for line in lines]
    return "\n".join(
        f"{match[1]}pass" if match else line for match, line in zip(matches, lines, strict=True)
    )


def source_of_file(path: Path) -> str:
    """The Python text of a file or of the cells of a notebook; raises UsageError, OSError."""
    if is_notebook(path):
        return "\n".join(cell.text for cell in cells_of(path))
    return path.read_text(encoding="utf-8")
