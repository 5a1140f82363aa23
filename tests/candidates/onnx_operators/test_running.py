from __future__ import annotations

import numpy as np
import pytest
from onnx_calls import heads

from candidates.onnx_operators.graph import Node, node_for
from candidates.onnx_operators.running import (
    Feeds,
    Run,
    expanded,
    run_function_body,
    run_on_onnxruntime,
    run_on_reference,
)
from candidates.onnx_operators.schemas import attention

RUNS = pytest.mark.parametrize("run", [run_on_onnxruntime, run_on_reference, run_function_body])


def _call(**attributes: float) -> tuple[Node, Feeds]:
    feeds = {name: tensor.numpy() for name, tensor in zip("QKV", heads(), strict=True)}
    return node_for(attention(23), feeds, outputs=("Y",), attributes=attributes), feeds


@RUNS
def test_each_way_answers_with_the_outputs_asked_for(run: Run) -> None:
    """One array an output, in the shape of the heads, finite."""
    (answer,) = run(*_call())
    assert answer.shape == (2, 4, 3, 6)
    assert answer.dtype == np.float32
    assert np.isfinite(answer).all()


@RUNS
def test_each_way_obeys_attributes(run: Run) -> None:
    """A scale, a cap and causality each change the answer."""
    (plain,) = run(*_call())
    for attributes in ({"scale": 2.0}, {"softcap": 0.5}, {"is_causal": 1}):
        (changed,) = run(*_call(**attributes))
        assert not np.array_equal(changed, plain)


def test_the_function_body_has_no_attention_left() -> None:
    """The expanded graph computes with other operators alone."""
    node, _ = _call()
    model = expanded(node)
    kinds = {entry.op_type for entry in model.graph.node}
    assert not model.functions
    assert "Attention" not in kinds
    assert {"MatMul", "Softmax"} <= kinds
