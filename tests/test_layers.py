"""Imports of what stands outside: ``lint-imports`` holds the layers inside conformance."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from _paths import CHECKOUT

# What each package may import besides the standard library and itself.
MAY_IMPORT = {
    "reference": {"torch"},
    "conformance": {
        "click",
        "hypothesis",
        "jinja2",
        "numpy",
        "onnx",
        "onnxruntime",
        "psutil",
        "pytest",
        "ray",
        "_pytest",
        "redis",
        "watchfiles",
        "reference",
        "rich",
        "safetensors",
        "tomlkit",
        "torch",
        "xdist",
    },
    # Triton only where it is installed: the candidate is offered nowhere else.
    "candidates": {"conformance", "numpy", "torch", "triton", "jax", "onnx", "onnxruntime"},
}


def sources(package: str) -> list[Path]:
    """Every Python file of a package."""
    return sorted((CHECKOUT / package).rglob("*.py"))


def module_of(path: Path) -> str:
    """The dotted name of a file, ``__init__`` for the root of a package."""
    parts = path.relative_to(CHECKOUT).with_suffix("").parts[1:]
    if len(parts) > 1 and parts[-1] == "__init__":
        parts = parts[:-1]
    return ".".join(parts)


@cache
def imports_of(path: Path) -> tuple[str, ...]:
    """Every absolute dotted name that a file imports, wherever in the file it does."""
    return tuple(_imports_of(path))


def _imports_of(path: Path) -> Iterator[str]:
    package = path.relative_to(CHECKOUT).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            home = ".".join((*base, *filter(None, [node.module])))
            yield from (f"{home}.{alias.name}" for alias in node.names)


MODULES = frozenset(module_of(source) for source in sources("conformance"))


def test_views_import_no_heavy_library() -> None:
    """A view runs without torch: of other distributions it imports click, jinja2 and rich."""
    may = {"click", "jinja2", "rich", "conformance"} | sys.stdlib_module_names
    imported = {name for path in sources("conformance/views") for name in imports_of(path)}
    assert {name for name in imported if name.partition(".")[0] not in may} == set()


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_package_imports_only_what_it_may(package: str) -> None:
    """The golden needs torch alone, and candidates see the public harness, never the golden."""
    may = MAY_IMPORT[package] | {package} | sys.stdlib_module_names
    strangers = {
        f"{path.relative_to(CHECKOUT)}: {name}"
        for path in sources(package)
        for name in imports_of(path)
        if name.partition(".")[0] not in may
    }
    assert not strangers


def test_only_the_loader_names_the_golden() -> None:
    """The harness gets the golden from ``_golden``, else a user's ``reference`` would be taken."""
    importers = {
        module_of(path)
        for path in sources("conformance")
        for name in imports_of(path)
        if name.partition(".")[0] == "reference"
    }
    assert importers == {"_golden"}


def test_candidates_use_the_public_names_only() -> None:
    """A candidate imports ``conformance``, not its modules: what we ship, users can write."""
    private = {
        f"{path.relative_to(CHECKOUT)}: {name}"
        for path in sources("candidates")
        for name in imports_of(path)
        if name.startswith("conformance.") and name.count(".") > 1
    }
    assert not private


def test_architecture_places_every_package() -> None:
    """ARCHITECTURE.md names each package and each flat module, and import-linter places them."""
    places = {module.partition(".")[0] for module in MODULES} - {"__init__", "__main__"}
    text = (CHECKOUT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert {name for name in places if f"`{name}" not in text} == set()
    settings = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    assert {name for line in layers for name in line.split(" | ")} == places
