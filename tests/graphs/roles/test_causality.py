"""``read_roles`` on causal rules that always apply."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from graph_exports import (
    WIDTH,
    causal,
    dynamic,
    keeping,
    numbers,
    of_layer,
    separate,
)
from role_reading import SEPARATE, read


@pytest.mark.parametrize(
    ("masking", "alignment"), [(None, None), (causal, "top-left")], ids=["none", "causal"]
)
def test_a_causal_rule_that_always_applies_is_found(
    masking: Any, alignment: str | None, tmp_path: Path
) -> None:
    """Its alignment is read off calls with more keys than queries."""
    module = of_layer(lambda layer, q, k, v: layer(q, k, v, masking=masking)[0])
    assert read(tmp_path, module, separate(), SEPARATE).causal == alignment


def test_the_causal_rule_of_self_attention_is_called_bottom_right(tmp_path: Path) -> None:
    """With equal lengths the alignments are one."""
    module = of_layer(lambda layer, x: layer(x, x, x, masking=causal)[0])
    reading = read(tmp_path, module, {"x": numbers(3, 5, WIDTH)}, dynamic(x="b s"))
    assert reading.causal == "bottom-right"
    assert any("causal" in sentence for sentence in reading.assumptions)


def test_a_fixed_rule_aligned_bottom_right_is_found(tmp_path: Path) -> None:
    """Five queries are the last of seven positions."""
    rule = torch.ones(5, 7, dtype=torch.bool).tril(2)
    module = of_layer(lambda layer, q, k, v: layer(q, k, v, masking=keeping(rule))[0])
    assert read(tmp_path, module, separate()).causal == "bottom-right"
