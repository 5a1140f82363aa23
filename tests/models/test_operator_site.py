"""The attention that a node is by itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from little_graphs import model, node, saved, tensor
from onnx import ModelProto, TensorProto, helper
from whole_models import HEADS, SIZE, masks, only

from conformance.graphs.process import Array
from conformance.models.cutting import cut
from conformance.models.mask_facts import mask_facts
from conformance.models.sites import find_sites

HALF = 0.5
BATCH, LENGTH = 2, 5
INT = TensorProto.INT32


@pytest.mark.parametrize("causal", [0, 1])
def test_an_attention_operator_is_a_site(causal: int, tmp_path: Path) -> None:
    """Its own scale, mask and causal rule are read off its attributes and inputs."""
    nodes = [
        node("MatMul", "ids wide", "tokens"),
        helper.make_node(
            "Attention",
            ["tokens", "tokens", "tokens", "allowed"],
            ["answer"],
            q_num_heads=HEADS,
            kv_num_heads=HEADS,
            is_causal=causal,
            scale=0.25,
        ),
    ]
    width = HEADS * SIZE
    made = model(
        nodes,
        inputs=(
            ("ids", TensorProto.FLOAT, ["b", "s", 3]),
            ("allowed", TensorProto.BOOL, ["b", 1, "s", "s"]),
        ),
        outputs=(("answer", TensorProto.FLOAT, ["b", "s", width]),),
        tensors=[tensor("wide", np.ones((3, width), np.float32))],
        opset=23,
    )
    site = only(saved(made, tmp_path / "graph.onnx"))
    assert (site.heads, site.kv_heads, site.head_size) == (HEADS, HEADS, SIZE)
    assert (site.scale, site.causal) == (0.25, bool(causal))
    assert masks(site) == [("keep", "B1QK", "allowed")]


def test_an_operator_of_onnxruntime_is_a_site(tmp_path: Path) -> None:
    """Without the biases, which belong to the projections; its padding mask is one of integers."""
    width = HEADS * SIZE
    made = model(
        [
            helper.make_node(
                "MultiHeadAttention",
                ["x", "x", "x", "biases", "padding"],
                ["answer"],
                num_heads=HEADS,
                domain="com.microsoft",
            )
        ],
        inputs=(
            ("x", TensorProto.FLOAT, ["b", "s", width]),
            ("padding", TensorProto.INT32, ["b", "s"]),
        ),
        outputs=(("answer", TensorProto.FLOAT, ["b", "s", width]),),
        tensors=[tensor("biases", np.ones(3 * width, np.float32))],
        domains=("com.microsoft",),
    )
    site = only(saved(made, tmp_path / "graph.onnx"))
    assert (site.heads, site.kv_heads, site.head_size, site.scale) == (HEADS, HEADS, SIZE, HALF)
    assert masks(site) == [("keep_int", "BK", "padding")]
    assert "biases" not in site.inside[-1].input


def of_operator(
    inputs: str, *, times: int = 1, size: int = SIZE, operator: str = "", **own: object
) -> ModelProto:
    """A graph of floats ``x`` [b, s, 3] whose one node reads ``wide``: heads side by side.

    ``times`` says how many of them there are for each head.
    """
    width = HEADS * size
    generator = np.random.default_rng(0)
    matrix = generator.standard_normal((3, times * width)).astype(np.float32)
    nodes, tensors = [node("MatMul", "x matrix", "wide")], [tensor("matrix", matrix)]
    square = generator.standard_normal((width, 3 * width)).astype(np.float32)
    tensors += [tensor("square", square), tensor("row", np.zeros(3 * width, np.float32))]
    nodes.append(node("DynamicQuantizeLinear", "wide", "wide8 step8 zero8"))
    tensors.append(tensor("square8", np.ones((width, 3 * width), np.int8)))
    tensors += [tensor("steps8", np.float32(0.5)), tensor("none8", np.int8(0))]
    names = ["" if name == "-" else name for name in inputs.split()]
    presents = ["present_key", "present_value"] if "past_key" in names else []
    domain = "" if operator == "Attention 23" else "com.microsoft"
    kind = operator.removesuffix(" 23")
    nodes.append(helper.make_node(kind, names, ["answer", *presents], domain=domain, **own))  # type: ignore[arg-type]
    heads: list[str | int] = ["b", HEADS, "p", size]
    return model(
        nodes,
        inputs=(
            ("x", TensorProto.FLOAT, ["b", "s", 3]),
            ("padding", INT, ["b", "s"]),
            ("numbers", INT, ["b"]),
            ("whole", INT, []),
            ("past_key", TensorProto.FLOAT, heads),
            ("past_value", TensorProto.FLOAT, heads),
        ),
        outputs=(("answer", TensorProto.FLOAT, ["b", "s", width]),),
        tensors=tensors,
        opset=23,
        domains=["com.microsoft"],
    )


def attended(query: Array, key: Array, value: Array, keep: Array) -> Array:
    """Attention of packed heads as textbooks write it."""
    query, key, value = (
        part.reshape(*part.shape[:2], HEADS, -1).swapaxes(1, 2) for part in (query, key, value)
    )
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    weights = np.exp(np.where(keep, scores, -np.inf))
    mixed = weights / weights.sum(-1, keepdims=True) @ value
    packed: Array = mixed.swapaxes(1, 2).reshape(*mixed.shape[:1], mixed.shape[2], -1)
    return packed


EARLIER = np.tri(LENGTH, dtype=bool)
EVERY = np.ones((LENGTH, LENGTH), bool)
SHORT = np.array([LENGTH, 2])
KEPT = (np.arange(LENGTH) < SHORT[:, None])[:, None, None]
OPERATORS: dict[str, tuple[ModelProto, dict[str, Array], Array]] = {
    "past": (
        of_operator(
            "wide wide wide - past_key past_value",
            operator="Attention 23",
            q_num_heads=HEADS,
            kv_num_heads=HEADS,
        ),
        {},
        EVERY,
    ),
    "groups": (
        of_operator(
            "wide wide wide past_key past_value numbers whole",
            size=2 * SIZE,
            operator="GroupQueryAttention",
            num_heads=HEADS,
            kv_num_heads=HEADS,
        ),
        {},
        EARLIER,
    ),
    "groups in one tensor": (
        of_operator(
            "wide - - - - numbers whole",
            times=3,
            size=2 * SIZE,
            operator="GroupQueryAttention",
            num_heads=HEADS,
            kv_num_heads=HEADS,
        ),
        {},
        EARLIER,
    ),
    "projected": (
        of_operator("wide square row padding", operator="Attention", num_heads=HEADS),
        {"mask": KEPT[:, 0, 0].astype(np.int32)},
        KEPT,
    ),
    "projected, numbers of keys": (
        of_operator("wide square row numbers", operator="Attention", num_heads=HEADS),
        {"mask": SHORT.astype(np.int32)},
        KEPT,
    ),
    "projected, of integers": (
        of_operator(
            "wide8 square8 row step8 steps8 padding zero8 none8",
            operator="QAttention",
            num_heads=HEADS,
        ),
        {"mask": KEPT[:, 0, 0].astype(np.int32)},
        KEPT,
    ),
    "projected, later tokens hidden": (
        of_operator("wide square row", operator="Attention", num_heads=HEADS, unidirectional=1),
        {},
        EARLIER,
    ),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_is_cut_out_with_its_parts_apart(name: str, tmp_path: Path) -> None:
    """Query, key and value enter one by one, whatever the node takes; its answer is attention."""
    made, masked, keep = OPERATORS[name]
    sites = find_sites(saved(made, tmp_path / "graph.onnx"))
    (site,) = sites.sites
    own = cut(sites.graph, site)
    assert site.heads == HEADS
    assert site.head_size
    generator = np.random.default_rng(1)
    shape = (BATCH, LENGTH, HEADS * site.head_size)
    feeds = {
        part: generator.standard_normal(shape).astype(np.float32)
        for part in ("query", "key", "value")
    }
    expected = attended(feeds["query"], feeds["key"], feeds["value"], keep)
    feeds |= masked
    for part in ("past_key", "past_value"):
        if part in own.inputs:
            feeds[part] = np.zeros((BATCH, HEADS, 0, site.head_size), np.float32)
    session = onnxruntime.InferenceSession(own.model.SerializeToString())
    (answer,) = session.run(["output"], feeds)
    np.testing.assert_allclose(answer, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("operator", "inputs", "reason"),
    [
        ("Attention", "wide square row - past_key", "keys and values in one cache"),
        ("MultiHeadAttention", "wide", "query, key and value in one tensor"),
        (
            "QAttention",
            "wide8 square8 row step8 steps8 - - - past_key",
            "keys and values in one cache",
        ),
        ("SparseAttention", "wide wide wide", "SparseAttention"),
    ],
)
def test_what_no_attention_alone_can_be_given_is_listed(
    operator: str, inputs: str, reason: str, tmp_path: Path
) -> None:
    """With the reason, and never left out."""
    made = of_operator(inputs, operator=operator, num_heads=HEADS)
    found = find_sites(saved(made, tmp_path / "graph.onnx"))
    assert not found.sites
    (entry,) = found.uncut
    assert reason in entry.reason


def test_a_window_shows_as_many_keys_as_the_runtime(tmp_path: Path) -> None:
    """The last query of a node with a window is changed by as many tokens as the facts say."""
    made = of_operator(
        "wide wide wide past_key past_value numbers whole",
        size=2 * SIZE,
        operator="GroupQueryAttention",
        num_heads=HEADS,
        kv_num_heads=HEADS,
        local_window_size=3,
    )
    path = saved(made, tmp_path / "graph.onnx")
    past = np.zeros((1, HEADS, 0, 2 * SIZE), np.float32)
    feeds = {"past_key": past, "past_value": past, "numbers": np.array([LENGTH - 1], np.int32)}
    feeds |= {"whole": np.array(LENGTH, np.int32), "padding": np.ones((1, LENGTH), np.int32)}
    session = onnxruntime.InferenceSession(str(path))
    taken = {port.name for port in session.get_inputs()}

    def last(tokens: Array) -> Array:
        given = {name: value for name, value in feeds.items() if name in taken}
        answer: Array = session.run(["answer"], {**given, "x": tokens})[0][0, -1]
        return answer

    tokens = np.random.default_rng(0).standard_normal((1, LENGTH, 3)).astype(np.float32)
    changed = [tokens + np.float32(np.arange(LENGTH) == at)[:, None] for at in range(LENGTH)]
    seen = sum(not np.array_equal(last(tokens), last(other)) for other in changed)
    assert mask_facts(find_sites(path))[0].window == seen
