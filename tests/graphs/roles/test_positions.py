"""What is said of graphs in which the place of a key matters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from graph_exports import adding, causal, dynamic, numbers, of_layer, separate
from role_reading import SEPARATE, read
from torch import Tensor

SAID = "exchanging two keys changes the answer of a third token"


def sloped(logits: Tensor) -> Tensor:
    """A bias that grows with the place of the key."""
    return adding(torch.arange(logits.shape[-1]) * 0.5)(logits)


def says(tmp_path: Path, masking: Callable[[Tensor], Tensor] | None) -> bool:
    """Whether the sentence is among the assumptions."""
    module = of_layer(lambda layer, q, k, v: layer(q, k, v, masking=masking)[0])
    reading = read(tmp_path, module, separate(), SEPARATE)
    return any(SAID in sentence for sentence in reading.assumptions)


def test_a_bias_by_position(tmp_path: Path) -> None:
    """A slope over the keys is noted before clauses fail for it."""
    assert says(tmp_path, sloped)


@pytest.mark.parametrize("masking", [None, causal])
def test_an_attention_without_positions(
    masking: Callable[[Tensor], Tensor] | None, tmp_path: Path
) -> None:
    """The last token sums over all keys in any order, under a causal rule, too."""
    assert not says(tmp_path, masking)


def test_rotated_heads(tmp_path: Path) -> None:
    """Rotary positions leave equal tokens equal and show all the same."""
    module = of_layer(lambda layer, x: layer(x, x, x)[0], rotary=True)
    reading = read(tmp_path, module, {"x": numbers(3, 6, 16)}, dynamic(x="b s"))
    assert any(SAID in sentence for sentence in reading.assumptions)
