"""Three ways to run a node: onnxruntime's kernel, onnx.reference, the operator's function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

import onnx.defs
import onnxruntime
from onnx import FunctionProto, ModelProto, NodeProto, TypeProto, helper
from onnx.inliner import inline_local_functions
from onnx.reference import ReferenceEvaluator

from .graph import Array, Node, graph_of

Feeds = Mapping[str, Array]
Run = Callable[[Node, Feeds], list[Array]]
_BODIES: Final = "function_body"  # the domain of functions that stand for operators


def run_on_onnxruntime(node: Node, feeds: Feeds) -> list[Array]:
    """The kernel of onnxruntime's CPU provider, if it has one for this node."""
    return _answers(_session(node), feeds)


def run_on_reference(node: Node, feeds: Feeds) -> list[Array]:
    """The evaluator in Python that makes the expected answers of ONNX's node tests."""
    return list(_evaluator(node).run(None, dict(feeds)))


def run_function_body(node: Node, feeds: Feeds) -> list[Array]:
    """The operator's function, by which the schema defines it, on onnxruntime's other kernels."""
    return _answers(_expanded_session(node), feeds)


def expanded(node: Node) -> ModelProto:
    """The graph of a node with the nodes of the operator's function in its place.

    ``onnx.inliner`` could ask the schema for the function itself, but dies of an optional input
    that is left out between others: so the function is made here and handed to it.
    """
    model = ModelProto()
    model.CopyFrom(graph_of(node))
    (call,) = model.graph.node
    function = _function_of(node, call)
    call.domain, call.name = function.domain, function.name
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid(_BODIES, 1))
    return inline_local_functions(model)


def _function_of(node: Node, call: NodeProto) -> FunctionProto:
    """The function that the schema makes for a call; defaults become attributes of the call."""
    schema: Any = onnx.defs.get_schema(node.operator.name, node.operator.version)
    given = {attribute.name for attribute in call.attribute}
    defaults = {name: known.default_value for name, known in schema.attributes.items()}
    call.attribute.extend(
        value for name, value in defaults.items() if name not in given and value.name
    )
    types = {value.name: value.type for value in graph_of(node).graph.input}
    serialised = schema.get_context_dependent_function_with_opset_version(
        schema.context_dependent_function_opset_versions[0],
        call.SerializeToString(),
        [types.get(name, TypeProto()).SerializeToString() for name in call.input],
    )
    function = FunctionProto()
    function.ParseFromString(serialised)
    function.domain = _BODIES
    return function


# Sizes are free in a graph, so few graphs serve a whole run: scales and caps make most of them.
@lru_cache(maxsize=256)
def _session(node: Node) -> Any:
    return _open(graph_of(node))


@lru_cache(maxsize=256)
def _expanded_session(node: Node) -> Any:
    return _open(expanded(node))


@lru_cache(maxsize=256)
def _evaluator(node: Node) -> ReferenceEvaluator:
    return ReferenceEvaluator(graph_of(node))


def _open(model: ModelProto) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # faster for small shapes, and repeatable
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what fails is raised, no need to print it too
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _answers(session: Any, feeds: Feeds) -> list[Array]:
    answers: list[Array] = session.run(None, dict(feeds))
    return answers
