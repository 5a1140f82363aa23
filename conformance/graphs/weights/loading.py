"""Opens a graph to be looked into: local functions written out, its run with them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import onnx
from onnx import inliner

from ..external import embedded
from ..parsing import all_tensors
from ..process import GraphProcess
from .wiring import Wiring

# These round activations to 8 bits while the graph runs.
_COARSE: Final = frozenset(
    {"DynamicQuantizeLinear", "DynamicQuantizeMatMul", "QuantizeLinear", "QAttention"}
)


@contextmanager
def read_wiring(path: Path, process: GraphProcess) -> Iterator[tuple[Wiring, GraphProcess, bool]]:
    """The wiring of a file, what runs it, and whether that is the file itself.

    Tensors inside local functions have no name that could be tapped: a graph that has such runs
    from a copy in which they are written out.
    """
    model = onnx.load(path, load_external_data=False)
    if not model.functions:
        yield Wiring(model.graph, path.parent), process, True
        return
    for tensor in all_tensors(model):
        tensor.CopyFrom(embedded(tensor, path.parent))
    whole = inliner.inline_local_functions(model)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "inlined.onnx"
        onnx.save(whole, copy)
        with GraphProcess(copy, process.limits) as runner:
            yield Wiring(whole.graph, path.parent), runner, False


def is_coarse(wiring: Wiring) -> bool:
    """Whether a graph quantises activations while it runs."""
    return any(node.op_type in _COARSE for node in wiring.graph.node)
