"""Finds the node tests of ``Attention`` in the installed onnx."""

from __future__ import annotations

import importlib
import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from onnx import helper

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Vector:
    """One node test: attributes, and inputs and expected outputs by the schema's names.

    ``dtype`` is the element type of queries and keys; what is bfloat16 comes as float32, exactly.
    """

    name: str
    opset: int
    dtype: str
    attributes: dict[str, Any]
    inputs: dict[str, Array]
    outputs: dict[str, Array]


@cache
def vectors() -> dict[str, Vector]:
    """Every node test whose model is one ``Attention`` node, by name."""
    collected = (_vector(case) for case in _cases() if not case.name.endswith("_expanded"))
    return {vector.name: vector for vector in collected}


@cache
def expanded_vectors() -> dict[str, tuple[list[Array], list[Array]]]:
    """The data of the node tests whose model is the operator's function, by name."""
    cases = [case for case in _cases() if case.name.endswith("_expanded")]
    return {case.name: case.data_sets[0] for case in cases}


@cache
def _cases() -> list[Any]:
    """The module of the operator fills onnx' list of cases when it is first imported.

    ``collect_testcases``, the public way, imports the cases of all operators: many seconds.
    """
    node = importlib.import_module("onnx.backend.test.case.node")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, about the infinities that the cases are about
        importlib.import_module("onnx.backend.test.case.node.attention")
    return [case for case in node._NodeTestCases if case.name.startswith("test_attention")]


def _vector(case: Any) -> Vector:
    (node,) = case.model.graph.node
    inputs, outputs = case.data_sets[0]
    input_names = [
        schema for schema, name in zip(_names("inputs", case), node.input, strict=False) if name
    ]
    output_names = [
        schema for schema, name in zip(_names("outputs", case), node.output, strict=False) if name
    ]
    return Vector(
        name=case.name,
        opset=_opset(case),
        dtype=str(inputs[0].dtype),
        attributes={a.name: helper.get_attribute_value(a) for a in node.attribute},
        inputs=dict(zip(input_names, map(_plain, inputs), strict=True)),
        outputs=dict(zip(output_names, map(_plain, outputs), strict=True)),
    )


def _plain(array: Array) -> Array:
    return array.astype(np.float32) if str(array.dtype) == "bfloat16" else array


def _opset(case: Any) -> int:
    return int(case.model.opset_import[0].version)


def _names(side: str, case: Any) -> list[str]:
    defs = importlib.import_module("onnx.defs")
    schema = defs.get_schema("Attention", _opset(case))
    return [value.name for value in getattr(schema, side)]
