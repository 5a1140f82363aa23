"""A small attention layer as an ONNX graph, of which each mistake changes a part."""

from __future__ import annotations

import dataclasses
import inspect
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import torch
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from torch import Tensor, nn

import conformance
from conformance import Mistake

from ._kit import DECLARED

WIDTH: Final = 16
HEADS: Final = 2
HEAD_SIZE: Final = 8
OPSET: Final = 18
WRONG: Final = 1.001
IR_VERSION: Final = 8
Axis = int | str
Array = np.ndarray[Any, Any]


def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> NodeProto:
    """A node; the names of its inputs and outputs are separated by spaces."""
    return helper.make_node(operator, inputs.split(" "), outputs.split(" "), **attributes)


@cache
def weights() -> Mapping[str, Array]:
    """The four projections as ``(in, out)`` matrices, as graphs multiply them."""
    random = np.random.default_rng(5)
    spread = WIDTH**-0.5
    return {role: random.normal(0.0, spread, (WIDTH, WIDTH)).astype(np.float32) for role in "qkvo"}


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A graph before it is put together; ``query``, ``key`` and ``value`` are ``[B, L, 16]``.

    axes
        What the file calls the axes of the three and of the answer.
    splits
        The shape that each is read in to split it into heads.
    inside
        The nodes between the scaled scores ``logits`` and the weights ``weighted``.
    after
        The nodes between ``answer`` and ``output``.
    """

    axes: Mapping[str, Sequence[Axis]] = field(
        default_factory=lambda: {
            "query": ("batch", "queries", WIDTH),
            "key": ("batch", "keys", WIDTH),
            "value": ("batch", "keys", WIDTH),
            "output": ("batch", "queries", WIDTH),
        }
    )
    splits: Mapping[str, Sequence[int]] = field(
        default_factory=lambda: dict.fromkeys("qkv", (0, 0, HEADS, HEAD_SIZE))
    )
    tensors: Mapping[str, Array] = field(default_factory=dict)
    scale: float = HEAD_SIZE**-0.5
    inside: Sequence[NodeProto] = (node("Softmax", "logits", "weighted", axis=-1),)
    after: Sequence[NodeProto] = (node("Identity", "answer", "output"),)
    masks: Mapping[str, Sequence[Axis]] = field(default_factory=dict)

    def changed(self, **changes: Any) -> Parts:
        """The same with some fields changed."""
        return dataclasses.replace(self, **changes)


def put_together(parts: Parts) -> ModelProto:
    """The graph of some parts."""
    nodes = [*_projections(), *_scores(), *parts.inside, *_merge(), *parts.after]
    constants = {
        **{f"weight_{role}": matrix for role, matrix in weights().items()},
        **{f"split_{role}": np.array(shape, np.int64) for role, shape in parts.splits.items()},
        "merged_shape": np.array((0, 0, WIDTH), np.int64),
        "scale": np.float32(parts.scale),
        **parts.tensors,
    }
    floats = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, list(parts.axes[name]))
        for name in ("query", "key", "value")
    ]
    masks = [
        helper.make_tensor_value_info(name, TensorProto.BOOL, list(shape))
        for name, shape in parts.masks.items()
    ]
    output = helper.make_tensor_value_info("output", TensorProto.FLOAT, list(parts.axes["output"]))
    made = helper.make_graph(
        nodes,
        "attention",
        [*floats, *masks],
        [output],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", OPSET)]
    return helper.make_model(made, opset_imports=opsets, ir_version=IR_VERSION)


def _projections() -> list[NodeProto]:
    nodes = []
    for role, name in (("q", "query"), ("k", "key"), ("v", "value")):
        nodes += [
            node("MatMul", f"{name} weight_{role}", f"{role}_tokens"),
            node("Reshape", f"{role}_tokens split_{role}", f"{role}_split"),
            node("Transpose", f"{role}_split", f"{role}_heads", perm=[0, 2, 1, 3]),
        ]
    return nodes


def _scores() -> list[NodeProto]:
    return [
        node("Transpose", "k_heads", "k_turned", perm=[0, 1, 3, 2]),
        node("MatMul", "q_heads k_turned", "products"),
        node("Mul", "products scale", "logits"),
    ]


def _merge() -> list[NodeProto]:
    return [
        node("MatMul", "weighted v_heads", "heads"),
        node("Transpose", "heads", "heads_last", perm=[0, 2, 1, 3]),
        node("Reshape", "heads_last merged_shape", "merged"),
        node("MatMul", "merged weight_o", "answer"),
    ]


class Eager(nn.Module):
    """The module that the graph is exported from."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = HEADS
        for name, role in (("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v"), ("o_proj", "o")):
            linear = nn.Linear(WIDTH, WIDTH, bias=False)
            linear.weight = nn.Parameter(torch.from_numpy(weights()[role].T.copy()))
            self.add_module(name, linear)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention of ``[B, L, 16]``."""
        inputs = (("q_proj", query), ("k_proj", key), ("v_proj", value))
        heads = (
            self.get_submodule(name)(tokens).unflatten(-1, (HEADS, HEAD_SIZE)).transpose(1, 2)
            for name, tokens in inputs
        )
        q, k, v = heads
        weighted = (q @ k.transpose(-1, -2) * HEAD_SIZE**-0.5).softmax(-1)
        merged = (weighted @ v).transpose(1, 2).flatten(2)
        return self.get_submodule("o_proj")(merged)  # type: ignore[no-any-return]  # a submodule returns Any


@cache
def folder() -> Path:
    """Where the files lie; it goes with the process."""
    below = os.environ.get("CONFORMANCE_SCRATCH")  # a worker's: one that is killed removes nothing
    kept = tempfile.TemporaryDirectory(prefix="conformance-broken-graphs-", dir=below)
    KEPT.append(kept)
    return Path(kept.name)


KEPT: Final[list[tempfile.TemporaryDirectory[str]]] = []


def remove_folders() -> None:
    """Remove the files before the process ends, which may be killed while it does."""
    while KEPT:
        KEPT.pop().cleanup()


def saved(made: ModelProto, name: str, **options: Any) -> Path:
    """The file of a graph, in a folder of its own."""
    path = folder() / name / "model.onnx"
    path.parent.mkdir(exist_ok=True)
    onnx.save(made, path, **options)
    return path


Maker = Callable[[], Any]


def graph(primary: str, *also: str, source: bool = False) -> Callable[[Maker], Maker]:
    """Declare a function that makes a broken graph: its parts, a model, or a candidate."""

    def record(make: Maker) -> Maker:
        name = "".join(word.capitalize() for word in make.__name__.split("_"))
        DECLARED.append(
            Mistake(
                name=name,
                sentence=" ".join(inspect.cleandoc(make.__doc__ or "").split()),
                primary=primary,
                also=also,
                candidate=lambda: _candidate(make(), name, source=source),
            )
        )
        return make

    return record


def _candidate(made: Any, name: str, *, source: bool) -> Any:
    if isinstance(made, Parts):
        made = put_together(made)
    if isinstance(made, ModelProto):
        made = saved(made, name)
    if isinstance(made, Path):
        return conformance.graph(made, name=name, source=Eager() if source else None)
    return made


class SecondProvider:
    """A graph's process whose runtime has another provider than the CPU's."""

    def __init__(self, process: Any) -> None:
        self._process = process

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process, name)

    def providers(self) -> list[str]:
        """The names of both."""
        return ["PretendedExecutionProvider", "CPUExecutionProvider"]


def at_settings(candidate: Any, wrong: Callable[[Any], bool]) -> Any:
    """A graph under a pretended runtime, which errs by a thousandth at some of its settings."""
    opened = candidate.graph

    def forward(setting: Any) -> Callable[..., Any]:
        own = dataclasses.replace(setting, provider="CPUExecutionProvider")
        answer: Callable[..., Any] = opened.forward(own)
        if not wrong(setting):
            return answer
        return lambda *inputs, **masks: answer(*inputs, **masks) * WRONG

    changed = dataclasses.replace(opened, forward=forward, process=SecondProvider(opened.process))
    return dataclasses.replace(candidate, graph=changed)
