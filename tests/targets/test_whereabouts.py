from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from declared import core
from workspaces import write

from conformance.declare.candidate import Candidate
from conformance.identification.opening import resolve_one
from conformance.targets.source_location import whereabouts

FILE = """
import functools
import torch
import conformance
from conformance import core


def attend(query, key, value):
    return query


@functools.wraps(attend)
def wrapped(*arguments):
    return attend(*arguments)


class Callable:
    def __call__(self, query, key, value):
        return query


class Layer(torch.nn.MultiheadAttention):
    pass


def make_layer():
    return Layer(8, 2, batch_first=True)


@core()
def decorated(query, key, value):
    return query


by_hand = core()(attend)
through = core()(wrapped)
partial = core()(functools.partial(attend))
instance = core()(Callable())
if True:
    builtin: object = core(name="builtin")(torch.nn.functional.scaled_dot_product_attention)
bound_in_a_tuple, _ = core(name="pair")(torch.nn.functional.scaled_dot_product_attention), None
"""
LINES = {
    "decorated": "@core()",
    "by_hand": "def attend",
    "through": "def attend",
    "partial": "def attend",
    "instance": "class Callable",
    "builtin": "    builtin: object",
    "bound_in_a_tuple": "bound_in_a_tuple, _",
    "Layer": "class Layer",
    "make_layer": "def make_layer",
}


def line_of(beginning: str) -> int:
    """The number of the line of the file that begins so."""
    lines = FILE.splitlines()
    return 1 + next(index for index, line in enumerate(lines) if line.startswith(beginning))


@pytest.mark.parametrize(("name", "beginning"), LINES.items())
def test_the_line_of_a_candidate(workspace: Path, name: str, beginning: str) -> None:
    """What a candidate wraps is found, else the line that binds what the target names."""
    write(workspace, {"src/attn.py": FILE})
    if name == "Layer":  # a class needs sizes: an instance of it is a candidate
        write(workspace, {"src/attn.py": f"{FILE}\nLayer = Layer(8, 2, batch_first=True)\n"})
    (candidate,) = resolve_one(f"src/attn.py:{name}")
    assert whereabouts(candidate) == {"file": "src/attn.py", "line": line_of(beginning)}


def test_a_module_is_found_by_its_name(workspace: Path) -> None:
    """Of a dotted target it is the module's file."""
    write(workspace, {"mine/__init__.py": "", "mine/attn.py": FILE})
    (candidate,) = resolve_one("mine.attn:builtin")
    assert whereabouts(candidate) == {"file": "mine/attn.py", "line": line_of("    builtin")}


def test_files_are_told_from_the_repository(workspace: Path, monkeypatch: Any) -> None:
    """A run in a folder of a repository names files as the repository does."""
    write(workspace, {"packages/a/attn.py": FILE, ".git/HEAD": "ref: refs/heads/main\n"})
    monkeypatch.chdir(workspace / "packages" / "a")
    (candidate,) = resolve_one("attn.py:decorated")
    assert whereabouts(candidate) == {"file": "packages/a/attn.py", "line": line_of("@core()")}


def test_files_elsewhere_are_told_in_full(workspace: Path, monkeypatch: Any) -> None:
    """Outside of any repository and of the working folder."""
    write(workspace, {"there/attn.py": FILE, "here/x": ""})
    monkeypatch.chdir(workspace / "here")
    (candidate,) = resolve_one(f"{workspace}/there/attn.py:decorated")
    location = whereabouts(candidate)
    assert location == {
        "file": (workspace / "there" / "attn.py").as_posix(),
        "line": line_of("@core()"),
    }


class Hostile:
    """What raises whatever it is asked."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __call__(self, *arguments: Any) -> Any:
        """Never called."""


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "hostile": Hostile(),
    "of a console": eval("lambda query, key, value: query"),  # noqa: S307 (no file has it)
    "partial of a builtin": functools.partial(max),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
@pytest.mark.parametrize("target", ["", "gone.py:x", "gone.module:x", "registered", "x:y:z"])
def test_what_is_nowhere(function: Callable[..., Any], target: str) -> None:
    """A candidate without a file has no whereabouts, and nothing it does upsets the search."""
    declared = core().declaration
    candidate = Candidate(name="x", declaration=declared, function=function, target=target)
    location = whereabouts(candidate)
    assert location is None or Path(__file__).name in location["file"]


def test_a_graph_is_its_file(workspace: Path) -> None:
    """Without a line."""
    assert workspace.is_dir()
    declared = core().declaration
    graph = Candidate(name="x", declaration=declared, function=max, target="a/b.onnx")
    assert whereabouts(graph) == {"file": "a/b.onnx", "line": None}
