"""Operators that draw random numbers, inside the graph's process."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import onnx
from onnx import ModelProto

from .parsing import all_nodes

_DRAW: Final = {
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
}
_STRING: Final = onnx.TensorProto.STRING
_RATIO: Final = 1
_TRAINING: Final = 2


def random_nodes(model: ModelProto) -> list[str]:
    """The nodes that draw whoever asks: ``Dropout 'name' in training mode``.

    A training mode that is an input of the graph is the caller's choice.
    """
    constants = _constants(model)
    found = []
    for node in all_nodes(model):
        shown = f"{node.op_type} {node.name!r}" if node.name else str(node.op_type)
        if node.domain in ("", "ai.onnx") and node.op_type in _DRAW:
            found.append(shown)
        elif node.op_type == "Dropout" and _trains(node, constants):
            found.append(f"{shown} in training mode")
    return list(dict.fromkeys(found))


def _trains(node: Any, constants: Mapping[str, Any]) -> bool:
    """Whether a dropout drops: its mode is on and its ratio not zero."""
    mode = _given(node, _TRAINING, constants)
    ratio = _given(node, _RATIO, constants)
    return mode is not None and bool(mode.any()) and (ratio is None or bool(ratio.any()))


def _given(node: Any, place: int, constants: Mapping[str, Any]) -> Any:
    """An input's constant value, None where it has none."""
    return constants.get(node.input[place]) if len(node.input) > place else None


def _constants(model: ModelProto) -> dict[str, Any]:
    """The small constants of the graph and of those inside it, by name."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in all_nodes(model):
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name == "value" and node.output:
                    tensors[node.output[0]] = attribute.t
    small = {name: tensor for name, tensor in tensors.items() if _is_small(tensor)}
    return {name: onnx.numpy_helper.to_array(tensor) for name, tensor in small.items()}


def _is_small(tensor: Any) -> bool:
    inside = tensor.data_location != onnx.TensorProto.EXTERNAL
    return bool(inside and math.prod(tensor.dims) <= 1 and tensor.data_type != _STRING)
