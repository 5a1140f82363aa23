"""The golden stands on torch alone, and on none of its attention functions."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import reference

SOURCES = sorted(Path(reference.__file__).parent.rglob("*.py"))
FORBIDDEN = {
    "MultiheadAttention",
    "flex_attention",
    "functional",
    "multi_head_attention_forward",
    "nn",
    "onnx",
    "ops",
}


def imported(tree: ast.Module) -> Iterator[str]:
    """The packages that a module imports; its own are left out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module)


def names(tree: ast.Module) -> Iterator[str]:
    """Every name and attribute that a module uses or imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield from node.name.split(".")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_only_torch_is_imported(path: Path) -> None:
    """Each file imports torch's top level and the standard library, nothing else."""
    allowed = sys.stdlib_module_names | {"torch"}
    assert {name for name in imported(ast.parse(path.read_text())) if name not in allowed} <= {
        "collections.abc"
    }


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_ready_made_attention(path: Path) -> None:
    """No file reaches into torch.nn, its functions or operators, where ready attention lives."""
    assert not FORBIDDEN & set(names(ast.parse(path.read_text())))


def test_golden_does_not_call_torchs_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """The golden still answers when torch's own attention and softmax refuse to."""

    def refuse(*_: object, **__: object) -> None:
        msg = "the golden must not call this"
        raise AssertionError(msg)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", refuse)
    monkeypatch.setattr(torch.nn.MultiheadAttention, "forward", refuse)
    monkeypatch.setattr(torch, "softmax", refuse)
    heads = torch.randn(1, 2, 3, 4)
    assert reference.scaled_dot_product_attention(heads, heads, heads).shape == (1, 2, 3, 4)


def test_exports_are_sorted_and_exist() -> None:
    """``__all__`` is sorted the way ruff sorts it and names nothing that is missing."""
    names_ = reference.__all__
    assert len(set(names_)) == len(names_)
    assert all(hasattr(reference, name) for name in names_)
