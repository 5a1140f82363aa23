"""The file of a graph: valid, self-contained, deterministic, with names that say roles."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from examples import CLAUSES, run_clause
from exported import Altered, Answers, Outputs, Plan, Run, opened
from onnx import ModelProto, TensorProto, helper, numpy_helper

import conformance
from candidates.broken._graphs import WIDTH, Parts, node, put_together
from candidates.eager import eager_core
from conformance.declare.candidate import Candidate
from conformance.graphs.process import Array, Feeds, Setting
from conformance.graphs.reading import Header

VALID, ALONE, ONE_FILE, DETERMINISTIC, NAMES = (
    f"export.{word}" for word in ("valid", "self-contained", "one-file", "deterministic", "names")
)
EVERY = (VALID, ALONE, ONE_FILE, DETERMINISTIC, NAMES)


def graph(made: ModelProto, folder: Path, **options: Any) -> Candidate:
    """The candidate that a model is, saved as ``model.onnx``."""
    path = folder / "model.onnx"
    onnx.save_model(made, path, **options)
    return conformance.graph(path)


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Candidate:
    """A right graph in one file."""
    return graph(put_together(Parts()), tmp_path_factory.mktemp("right"))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("slug", [VALID, ALONE, DETERMINISTIC, NAMES])
def test_a_right_graph_passes(right: Candidate, slug: str) -> None:
    """None of the clauses has an objection to a graph that is as it should be."""
    assert run_clause(right, slug).status == "passed"


def test_one_file_speaks_of_several(right: Candidate) -> None:
    """To a graph that is one file the clause does not apply."""
    assert CLAUSES[ONE_FILE].not_applicable(right) == "it is one file"


@pytest.mark.parametrize("slug", EVERY)
def test_clauses_do_not_apply_without_a_graph(slug: str) -> None:
    """The clauses speak of graphs alone."""
    assert CLAUSES[slug].not_applicable(eager_core) == "it is no ONNX graph"


def test_levels() -> None:
    """A name, or a second file, is advice; what may compute something else is not."""
    levels = {slug: CLAUSES[slug].level for slug in EVERY}
    assert [slug for slug, level in levels.items() if level == "SHOULD"] == [ONE_FILE, NAMES]


def test_a_wrong_declaration_is_no_valid_file(tmp_path: Path) -> None:
    """A declared shape that does not follow from the operators is quoted from the checker."""
    made = put_together(Parts())
    made.graph.output[0].type.tensor_type.shape.dim[2].dim_value = WIDTH + 1
    result = run_clause(graph(made, tmp_path), VALID)
    assert result.status == "failed"
    assert result.violation is not None
    assert result.violation.kind == "file"
    assert "(16) vs (17)" in result.reason


def test_nodes_out_of_order_are_no_valid_file(tmp_path: Path) -> None:
    """What onnxruntime sorts by itself, other runtimes need not."""
    made = put_together(Parts())
    first = made.graph.node[0]
    made.graph.node.append(first)
    del made.graph.node[0]
    result = run_clause(graph(made, tmp_path), VALID)
    assert (result.status, "topologically sorted" in result.reason) == ("failed", True)


def test_weights_beside_it_are_advice(tmp_path: Path) -> None:
    """A sidecar that the graph needs and that is there breaks no MUST clause."""
    candidate = graph(
        put_together(Parts()),
        tmp_path,
        save_as_external_data=True,
        location="model.onnx.data",
        size_threshold=256,
    )
    assert run_clause(candidate, VALID).status == "passed"
    assert run_clause(candidate, ALONE).status == "passed"
    result = run_clause(candidate, ONE_FILE)
    assert (result.status, result.level) == ("failed", "SHOULD")
    assert "4 KiB of its weights are in model.onnx.data" in result.reason


def test_weights_that_fill_more_than_a_file(tmp_path: Path) -> None:
    """A graph that would not fit into one file need not be one."""
    candidate = graph(
        put_together(Parts()), tmp_path, save_as_external_data=True, size_threshold=256
    )
    assert candidate.graph is not None
    header = dataclasses.replace(candidate.graph.header, external_size=3 << 30)
    large = with_header(candidate, header)
    assert run_clause(large, ONE_FILE).status == "untestable"


def with_header(candidate: Candidate, header: Header) -> Candidate:
    """The same graph with another header."""
    assert candidate.graph is not None
    return dataclasses.replace(candidate, graph=dataclasses.replace(candidate.graph, header=header))


def test_a_stray_file(tmp_path: Path) -> None:
    """Weights beside the graph that it does not use are another export's."""
    (tmp_path / "model.onnx.data").write_bytes(b"weights of yesterday")
    result = run_clause(graph(put_together(Parts()), tmp_path), ALONE)
    assert (result.status, result.level) == ("failed", "MUST")
    assert "'model.onnx.data' lies beside it" in result.reason


def test_a_link(tmp_path: Path) -> None:
    """External data behind a link would not be shipped with the graph."""
    path = tmp_path / "model.onnx"
    onnx.save_model(
        put_together(Parts()), path, save_as_external_data=True, location="w", size_threshold=256
    )
    (tmp_path / "w").rename(tmp_path / "real")
    (tmp_path / "w").symlink_to("real")
    result = run_clause(conformance.graph(path), ALONE)
    assert (result.status, "'w' are a symbolic link" in result.reason) == ("failed", True)


DROPOUT = [
    node("Softmax", "logits", "kept", axis=-1),
    node("Dropout", "kept ratio training", "weighted", name="drop"),
]


def switches(ratio: float, *, training: bool) -> Mapping[str, Array]:
    """The constants of a dropout."""
    return {"ratio": np.array(ratio, np.float32), "training": np.array(training)}


def test_dropout_left_in(tmp_path: Path) -> None:
    """A dropout in training mode is named."""
    parts = Parts(inside=DROPOUT, tensors=switches(0.3, training=True))
    result = run_clause(graph(put_together(parts), tmp_path), DETERMINISTIC)
    assert result.status == "failed"
    assert result.reason.endswith("draws random numbers: Dropout 'drop' in training mode")


@pytest.mark.parametrize(("ratio", "training"), [(0.3, False), (0.0, True)])
def test_dropout_that_drops_nothing(tmp_path: Path, ratio: float, *, training: bool) -> None:
    """A dropout that is off, or of ratio zero, is no random operator."""
    parts = Parts(inside=DROPOUT, tensors=switches(ratio, training=training))
    assert run_clause(graph(put_together(parts), tmp_path), DETERMINISTIC).status == "passed"


def wandering(child: int, every: int) -> Answers:
    """Answers that are off by a thousandth in every second run, say, of one of the children."""
    runs = 0

    def alter(feeds: Feeds, setting: Setting, run: Run) -> Outputs:
        nonlocal runs
        runs += setting.child == child
        off = setting.child == child and not runs % every
        return {name: array * np.float32(1.001 if off else 1) for name, array in run(feeds).items()}

    return alter


@pytest.mark.parametrize(
    ("child", "every", "when"), [(0, 2, "a second time"), (1, 1, "in another process")]
)
def test_answers_that_differ(tmp_path: Path, child: int, every: int, when: str) -> None:
    """A graph that answers otherwise the second time, or in a fresh process, fails."""
    candidate = opened(
        tmp_path, Plan(), process=lambda path: Altered(path, wandering(child, every))
    )
    result = run_clause(candidate, DETERMINISTIC)
    assert result.status == "failed"
    assert f"the graph answers otherwise {when}" in result.reason


def renamed(**names: str) -> ModelProto:
    """A right graph with other names of inputs and outputs."""
    made = put_together(Parts())
    for port in (*made.graph.input, *made.graph.output):
        port.name = names.get(port.name, port.name)
    for operator in made.graph.node:
        operator.input[:] = [names.get(name, name) for name in operator.input]
        operator.output[:] = [names.get(name, name) for name in operator.output]
    return made


@pytest.mark.parametrize(
    ("names", "objection"),
    [
        ({"query": "onnx::MatMul_0"}, "'onnx::MatMul_0' is the query"),
        ({"output": "linear_3"}, "'linear_3' is the output"),
        ({"key": "values", "value": "keys"}, "'values' is the key, not the value"),
    ],
    ids=["legacy", "dynamo", "swapped"],
)
def test_names_without_roles(tmp_path: Path, names: dict[str, str], objection: str) -> None:
    """A tracer's name, and one that says another role, are quoted with the role."""
    result = run_clause(graph(renamed(**names), tmp_path), NAMES)
    assert (result.status, result.level) == ("failed", "SHOULD")
    assert objection in result.reason


def swapped_branches() -> ModelProto:
    """Attention whose boolean mask takes out the keys that it marks."""
    lowest = numpy_helper.from_array(np.array(-np.inf, dtype=np.float32), "lowest")
    nodes = [
        helper.make_node("Transpose", ["key"], ["turned"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["query", "turned"], ["products"]),
        helper.make_node("Mul", ["products", "scale"], ["logits"]),
        helper.make_node("Where", ["attention_mask", "lowest", "logits"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "value"], ["output"]),
    ]
    heads = ["batch", 2, "length", 4]
    port = helper.make_tensor_value_info
    inputs = [port(name, TensorProto.FLOAT, heads) for name in ("query", "key", "value")]
    inputs += [port("attention_mask", TensorProto.BOOL, ["batch", 1, 1, "length"])]
    output = port("output", TensorProto.FLOAT, heads)
    scale = numpy_helper.from_array(np.array(0.5, dtype=np.float32), "scale")
    made = helper.make_graph(nodes, "swapped", inputs, [output], [lowest, scale])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_mask_whose_name_promises_the_opposite(tmp_path: Path) -> None:
    """``attention_mask`` marks keys to attend: one that takes them out is told."""
    result = run_clause(graph(swapped_branches(), tmp_path), NAMES)
    assert (result.status, result.level) == ("failed", "SHOULD")
    assert "'attention_mask' marks keys to leave out" in result.reason
