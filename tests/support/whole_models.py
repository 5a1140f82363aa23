"""Small graphs with one attention over embedded tokens, whose middle a test chooses.

And what the clauses say of a whole model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from little_graphs import FLOAT, model, node, saved, tensor
from onnx import ModelProto, NodeProto, TensorProto

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
