"""What stands before query, key and value: turns, repetitions and factors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from little_graphs import FLOAT, model, node, saved, tensor

from conformance.models.model_graph import read_graph
from conformance.models.operands import edge_of


@pytest.mark.parametrize("axes", [2, [2]], ids=["a number", "a list"])
def test_heads_are_repeated_by_an_axis_however_it_is_written(axes: Any, tmp_path: Path) -> None:
    """An axis that is a number, as dynamo writes it, made a right model unusual."""
    made = model(
        [
            node("Unsqueeze", "keys axes", "apart"),
            node("Expand", "apart wide", "copies"),
            node("Reshape", "copies flat", "heads"),
        ],
        inputs=(("keys", FLOAT, ["b", 2, "s", 4]),),
        outputs=(("heads", FLOAT, ["b", 6, "s", 4]),),
        tensors=[
            tensor("axes", np.array(axes, np.int64)),
            tensor("wide", np.array([1, 1, 3, 1, 1], np.int64)),
            tensor("flat", np.array([0, 6, -1, 4], np.int64)),
        ],
    )
    edge = edge_of(read_graph(saved(made, tmp_path / "m.onnx")), "heads", "BHLD")
    assert (edge.name, edge.groups, edge.tiled) == ("keys", 3, False)
