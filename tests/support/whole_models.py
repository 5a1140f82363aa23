"""Small graphs with one attention over embedded tokens, whose middle a test chooses.

And what the clauses say of a whole model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from little_graphs import FLOAT, model, node, saved, tensor
from onnx import ModelProto, NodeProto, TensorProto, helper

from candidates.exports import by_export, by_tracing
from candidates.models import MODELS
from conformance.base.profile import PROFILES
from conformance.base.results import ClauseResult
from conformance.declare.candidate import Candidate
from conformance.models.site import Site
from conformance.models.sites import find_sites
from conformance.running.runner import CandidateRun

WORDS = 11
WIDTH = 8
HEADS = 2
SIZE = WIDTH // HEADS
# What the middle may read: numbers, and a mask for four queries and keys.
_TENSORS = (
    tensor("table", np.random.default_rng(0).standard_normal((WORDS, WIDTH)).astype(np.float32)),
    tensor("apart", np.array([0, 0, HEADS, SIZE])),
    tensor("together", np.array([0, 0, WIDTH])),
    tensor("half", np.array(0.5, np.float32)),
    tensor("low", np.array(-np.inf, np.float32)),
    tensor("nothing", np.array(0.0, np.float32)),
    tensor("one", np.array([1])),
)
PLAIN = (node("Mul", "scores half", "scaled"), node("Softmax", "scaled", "weights", axis=-1))


def token_graph(
    middle: Sequence[NodeProto] = PLAIN,
    *,
    weights: str = "weights",
    tensors: Sequence[TensorProto] = (),
    domains: Sequence[str] = (),
) -> ModelProto:
    """Attention over the embeddings of ``ids`` [b, s] with a mask ``allowed`` [b, 1, s, s].

    ``middle`` leads from ``scores`` to ``weights``. Its heads are called ``query``, ``key`` (with
    features before positions), ``value`` and ``mixed``.
    """
    generator = np.random.default_rng(1)
    matrices = [
        tensor(f"matrix_{part}", generator.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 4)
        for part in "qkv"
    ]
    nodes = [
        node("Gather", "table ids", "tokens"),
        *(node("MatMul", f"tokens matrix_{part}", f"wide_{part}") for part in "qkv"),
        *(node("Reshape", f"wide_{part} apart", f"cut_{part}") for part in "qkv"),
        node("Transpose", "cut_q", "query", perm=[0, 2, 1, 3]),
        node("Transpose", "cut_k", "key", perm=[0, 2, 3, 1]),
        node("Transpose", "cut_v", "value", perm=[0, 2, 1, 3]),
        node("MatMul", "query key", "scores"),
        *middle,
        node("MatMul", f"{weights} value", "mixed"),
        node("Transpose", "mixed", "turned", perm=[0, 2, 1, 3]),
        node("Reshape", "turned together", "answer"),
    ]
    return model(
        nodes,
        inputs=(
            ("ids", TensorProto.INT64, ["b", "s"]),
            ("allowed", TensorProto.BOOL, ["b", 1, "s", "s"]),
            ("bias", FLOAT, ["b", HEADS, "s", "s"]),
        ),
        outputs=(("answer", FLOAT, ["b", "s", WIDTH]),),
        tensors=[*_TENSORS, *matrices, *tensors],
        domains=domains,
    )


def causal_graph(ahead: int = 0, *, role: str = "drop", name: str = "marks") -> ModelProto:
    """A decoder of ids [b, s] and a mask [b, s], whose causal rule ends ``ahead`` keys too late.

    How many tokens there are it reads off the shape of their embeddings.
    """
    kind = TensorProto.BOOL if role == "drop" else TensorProto.INT64
    padding = (
        [node("Identity", name, "padding")]
        if role == "drop"
        else [node("Cast", name, "exist", to=TensorProto.BOOL), node("Not", "exist", "padding")]
    )
    made = token_graph(
        [
            node("Shape", "tokens", "sizes"),
            node("Gather", "sizes at_one", "count"),
            node("Range", "start count step", "places"),
            node("Unsqueeze", "places last", "queries"),
            node("Add", "queries ahead", "latest"),
            node("Greater", "places latest", "later"),
            *padding,
            node("Unsqueeze", "padding middle", "padding_of_keys"),
            node("Or", "later padding_of_keys", "hidden"),
            node("Mul", "scores half", "halves"),
            node("Where", "hidden lowest halves", "scaled"),
            PLAIN[1],
        ],
        tensors=[
            *(tensor(own, np.array(value)) for own, value in (("at_one", 1), ("start", 0))),
            *(tensor(own, np.array(value)) for own, value in (("step", 1), ("ahead", ahead))),
            tensor("last", np.array([-1])),
            tensor("middle", np.array([1, 2])),
            tensor("lowest", np.array(-1e9, np.float32)),
        ],
    )
    return of_ids(made, (name, kind))


def of_ids(made: ModelProto, *masks: tuple[str, int]) -> ModelProto:
    """A token graph whose inputs are its ids and some masks [b, s]."""
    del made.graph.input[1:]
    for name, kind in masks:
        made.graph.input.append(helper.make_tensor_value_info(name, kind, ["b", "s"]))
    return made


GROUPED_SIZE = 16


def grouped_model(layers: int = 3, *, window: int = -1) -> ModelProto:
    """A decoder as onnxruntime-genai builds it: GroupQueryAttention with caches, packed heads.

    The number of past tokens is not the only size of a cache that the file leaves open.
    """
    generator = np.random.default_rng(2)

    def matrix(name: str, *sizes: int) -> TensorProto:
        return tensor(name, generator.standard_normal(sizes).astype(np.float32) / 2)

    width = HEADS * GROUPED_SIZE
    angles = np.arange(40)[:, None] / 10.0 ** np.arange(GROUPED_SIZE // 2)
    tensors = [
        matrix("table", WORDS, width),
        tensor("cos", np.cos(angles).astype(np.float32)),
        tensor("sin", np.sin(angles).astype(np.float32)),
        tensor("one", np.array([1])),
    ]
    nodes = [
        node("ReduceSum", "attention_mask one", "counted"),
        node("Sub", "counted one", "less"),
        node("Cast", "less", "last", to=TensorProto.INT32),
        node("Shape", "attention_mask", "mask_sizes"),
        node("Gather", "mask_sizes one", "every"),
        node("Cast", "every", "total", to=TensorProto.INT32),
        node("Gather", "table input_ids", "x0"),
    ]
    heads = ["b", 1, "past", "size"]
    inputs: list[tuple[str, int, Sequence[object]]] = [
        ("input_ids", TensorProto.INT64, ["b", "s"]),
        ("attention_mask", TensorProto.INT64, ["b", "total"]),
    ]
    outputs: list[tuple[str, int, Sequence[object]]] = [(f"x{layers}", FLOAT, ["b", "s", width])]
    for at in range(layers):
        tensors += [matrix(f"qkv{at}", width, 2 * width), matrix(f"out{at}", width, width)]
        pasts = [f"past_key_values.{at}.{part}" for part in ("key", "value")]
        presents = [f"present.{at}.{part}" for part in ("key", "value")]
        nodes += [
            node("MatMul", f"x{at} qkv{at}", f"packed{at}"),
            helper.make_node(
                "GroupQueryAttention",
                [f"packed{at}", "", "", *pasts, "last", "total", "cos", "sin"],
                [f"heads{at}", *presents],
                name=f"attention{at}",
                domain="com.microsoft",
                num_heads=HEADS,
                kv_num_heads=1,
                do_rotary=1,
                local_window_size=window,
            ),
            node("MatMul", f"heads{at} out{at}", f"mixed{at}"),
            node("Add", f"x{at} mixed{at}", f"x{at + 1}"),
        ]
        inputs += [(name, FLOAT, heads) for name in pasts]
        outputs += [(name, FLOAT, ["b", 1, "total", "size"]) for name in presents]
    return model(nodes, inputs, outputs, tensors=tensors, domains=["com.microsoft"])


def written(path: Path, middle: Sequence[NodeProto] = PLAIN, weights: str = "weights") -> Path:
    """The file of a token graph."""
    return saved(token_graph(middle, weights=weights), path)


def exported(name: str, folder: Path, exporter: str = "traced") -> Path:
    """A model of ``candidates.models`` in a file: ``traced``, or ``20`` and ``23`` by opset."""
    path = folder / f"{name}.onnx"
    if exporter == "traced":
        return by_tracing(MODELS[name], path)
    return by_export(MODELS[name], path, opset=int(exporter))


def only(path: Path) -> Site:
    """The one attention of a file, in which nothing else looks like one."""
    sites = find_sites(path)
    assert not sites.uncut
    (site,) = sites.sites
    return site


def masks(site: Site) -> list[tuple[str, str, str]]:
    """Role, axes and tensor of each mask of an attention."""
    return [(mask.role, mask.axes, mask.name) for mask in site.masks]


def results(candidate: Candidate, only: str = "*") -> list[ClauseResult]:
    """The results of the clauses of whole models."""
    run = CandidateRun(candidate, profile=PROFILES["quick"], only=(only,), explain=False)
    return [run.run(planned) for planned in run.planned()]


def not_passed(found: list[ClauseResult]) -> dict[str, str]:
    """The clauses that did not pass, with what they say."""
    return {
        result.id: result.violation.message if result.violation else str(result.reason)
        for result in found
        if result.status not in ("passed", "not-applicable")
    }
