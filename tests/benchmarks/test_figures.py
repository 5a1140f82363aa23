"""The figures of docs/ are what their scripts draw today."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest
import torch
from _paths import CHECKOUT
from torch import Tensor

from benchmarks.drawing import FIGURES
from benchmarks.drawing.attention import _as_it_is, _moving

FOLDER = CHECKOUT / "docs" / "pictures"


@pytest.mark.parametrize("name", FIGURES)
def test_figure_is_not_stale(name: str) -> None:
    """The committed figure is what its function draws, to the letter, and is a picture."""
    drawn = FIGURES[name]()
    assert (FOLDER / f"{name}.svg").read_text(encoding="utf-8") == drawn, (
        "run: python benchmarks/figures.py"
    )
    assert ET.fromstring(drawn).tag.endswith("svg")  # noqa: S314 (our own)


def _counted(tokens: Tensor) -> Tensor:
    """Tokens that know their places."""
    return tokens + torch.arange(tokens.shape[1])[:, None]


def test_tokens_move_only_with_positions() -> None:
    """Without positions no element moves, with them every row has one that does."""
    assert set("".join(_moving(_as_it_is))) == {"s"}
    assert all("m" in row for row in _moving(_counted))
