"""ONNX files as candidates: what is declared of them, and how they are called."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from little_graphs import model, node, saved, tensor
from onnx import TensorProto

import conformance
from candidates.broken._graphs import HEADS, WIDTH, Eager, Parts, put_together
from conformance import Candidate, UsageError
from conformance.base.profile import PROFILES
from conformance.base.results import ClauseResult
from conformance.running.runner import CandidateRun

MASKED = Parts(masks={"mask": ("batch", 1, 1, "keys")})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A correct graph of query, key and value."""
    onnx.save(put_together(Parts()), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


@pytest.fixture
def plain(path: Path) -> Iterator[Candidate]:
    """The same as a candidate."""
    candidate = conformance.graph(path)
    yield candidate
    assert candidate.graph is not None
    candidate.graph.process.close()


def results(candidate: Candidate, *only: str) -> list[ClauseResult]:
    """The clauses that were run."""
    run = CandidateRun(candidate, profile=PROFILES["quick"], only=only)
    return [run.run(planned) for planned in run.planned()]


def test_what_is_declared_of_a_graph(plain: Candidate) -> None:
    """Widths and heads come from the recovered weights; the report calls it a graph."""
    sizes = plain.declaration.pins.sizes
    assert (plain.kind, plain.shown_kind) == ("layer", "graph")
    assert (sizes["num_heads"], sizes["query_size"]) == ((HEADS,), (WIDTH,))
    assert plain.weights_known
    assert "gradients" not in plain.declaration.features
    assert any("query" in told for told in plain.declaration.assumptions)


def test_it_answers_as_its_module(plain: Candidate) -> None:
    """The forward of a graph takes and gives torch tensors."""
    query, key, value = (torch.randn(2, length, WIDTH) for length in (3, 5, 5))
    forward = plain.function(None, None)
    expected = Eager()(query, key, value)
    assert (forward(query, key, value) - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_masks_keep_their_name_and_shape(tmp_path: Path) -> None:
    """A mask that nothing shows the meaning of is named, and handed over as the file shapes it."""
    onnx.save(put_together(MASKED), tmp_path / "masked.onnx")
    candidate = conformance.graph(tmp_path / "masked.onnx", name="mine", empty_rows="zeros")
    assert candidate.name == "mine"
    assert candidate.declaration.mask_pairs == (("keep", "B11K"),)
    assert candidate.declaration.empty_rows == "zeros"


def test_a_source_verifies_the_scale(path: Path) -> None:
    """With the module beside it nothing is left to gauge."""
    onnx.save(put_together(Parts(scale=1.0)), path)
    alone, with_source = conformance.graph(path), conformance.graph(path, source=Eager())
    assert alone.graph is not None
    assert with_source.graph is not None
    assert "scale" in alone.graph.projections.gauge
    assert not with_source.graph.projections.gauge
    assert results(alone, "numerics.scale")[0].status == "passed"
    assert results(with_source, "numerics.scale")[0].status == "failed"


def test_an_input_that_the_source_needs(path: Path) -> None:
    """A graph that lost an input of its module does not match it."""

    class Masked(Eager):
        def forward(  # type: ignore[override]
            self,
            query: torch.Tensor,
            key: torch.Tensor,
            value: torch.Tensor,
            mask: torch.Tensor,
        ) -> torch.Tensor:
            assert mask is not None
            return super().forward(query, key, value)

    candidate = conformance.graph(path, source=Masked())
    (result,) = results(candidate, "export.matches-source")
    assert result.status == "failed"
    assert "the source takes mask, which the graph has no input for" in result.reason


def test_promises_are_checked(path: Path) -> None:
    """A wrong promise names the file."""
    with pytest.raises(UsageError, match=r"model\.onnx: empty_rows is 'zeroes'"):
        conformance.graph(path, empty_rows="zeroes")


def test_sources_that_cannot_be_one(path: Path) -> None:
    """A class has no weights to compare."""
    with pytest.raises(UsageError, match="is a class"):
        conformance.graph(path, source=Eager)  # type: ignore[arg-type]


class Causal(torch.nn.Module):
    """Self-attention that may see up to ``ahead`` later tokens; key and value may change places."""

    def __init__(self, ahead: int = 0) -> None:
        super().__init__()
        self.ahead = ahead
        self.num_heads = 2
        for name in ("query", "key", "value", "output"):
            self.add_module(name, torch.nn.Linear(WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend under the triangle."""
        query, key, value = (
            self.get_submodule(name)(x).unflatten(-1, (2, -1)).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        scores = query @ key.transpose(-1, -2) * (WIDTH // 2) ** -0.5
        later = torch.ones(x.shape[1], x.shape[1]).triu(1 + self.ahead).bool()
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        answer: torch.Tensor = self.get_submodule("output")(
            (weights @ value).transpose(1, 2).flatten(2)
        )
        return answer


def exported(module: torch.nn.Module, path: Path, *shapes: tuple[int, ...]) -> Path:
    """A graph of one tensor ``x``, its first two axes dynamic."""
    axes = {"x": {0: "batch", 1: "length"}}
    torch.onnx.export(
        module.eval(),
        tuple(torch.randn(shape) for shape in shapes),
        path,
        dynamo=False,
        opset_version=17,
        input_names=["x"],
        output_names=["output"],
        dynamic_axes=axes,
    )
    return path


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_the_causal_rule_is_the_sources(tmp_path: Path) -> None:
    """A triangle that is one off is no rule of its own: the module says which it should be."""
    torch.manual_seed(0)
    right, wrong = Causal(), Causal(ahead=1)
    wrong.load_state_dict(right.state_dict())
    path = exported(wrong, tmp_path / "near.onnx", (2, 5, WIDTH))
    assert conformance.graph(path).declaration.causal is None
    candidate = conformance.graph(path, source=right)
    assert candidate.declaration.causal == "bottom-right"
    (result,) = results(candidate, "mask.causal")
    assert result.status == "failed"


class Hiding(torch.nn.Module):
    """Self-attention of one head in whose mask one number hides a key."""

    def __init__(self, hides: int) -> None:
        super().__init__()
        self.hides, self.num_heads = hides, 1
        self.query, self.key, self.value, self.output = (
            torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)
        )

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Of tokens and a mask of integers."""
        scores = self.query(x) @ self.key(x).transpose(-1, -2) * WIDTH**-0.5
        weights = scores.masked_fill((mask == self.hides)[:, None, :], -1e9).softmax(-1)
        answer: torch.Tensor = self.output(weights @ self.value(x))
        return answer


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_mask_that_the_source_reads_otherwise_is_warned_of(tmp_path: Path) -> None:
    """What the graph hides by is its own; beside its source that is said, and of none alone."""
    torch.manual_seed(0)
    right, wrong = Hiding(0).eval(), Hiding(1).eval()
    wrong.load_state_dict(right.state_dict())
    torch.onnx.export(
        wrong,
        (torch.randn(2, 5, WIDTH), torch.ones(2, 5, dtype=torch.int64)),
        tmp_path / "inverted.onnx",
        dynamo=False,
        opset_version=17,
        input_names=["x", "mask"],
        output_names=["output"],
        dynamic_axes={name: {0: "batch", 1: "length"} for name in ("x", "mask")},
    )
    for source, expected in ((None, 0), (wrong, 0), (right, 1)):
        warnings = conformance.graph(tmp_path / "inverted.onnx", source=source).warnings
        assert len([one for one in warnings if "mask is read with the opposite" in one]) == expected


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_tensors_in_each_others_place(tmp_path: Path) -> None:
    """What a state dict calls the key's is the key's, though the graph projects values by it."""
    torch.manual_seed(0)
    right, wrong = Causal(), Causal()
    state = dict(right.state_dict())
    for kind in ("weight", "bias"):
        state[f"key.{kind}"], state[f"value.{kind}"] = state[f"value.{kind}"], state[f"key.{kind}"]
    wrong.load_state_dict(state)
    path = exported(wrong, tmp_path / "swapped.onnx", (2, 5, WIDTH))
    torch.save(right.state_dict(), tmp_path / "right.pt")
    candidate = conformance.graph(path, state_dict=tmp_path / "right.pt")
    (result,) = results(candidate, "numerics.golden")
    assert result.status == "failed"
    assert any(
        "projects its key by value.weight" in text for text in candidate.declaration.assumptions
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_source_that_cannot_be_called(tmp_path: Path) -> None:
    """A module of another width is no source of this graph."""
    path = exported(Causal(), tmp_path / "model.onnx", (2, 5, WIDTH))
    with pytest.raises(UsageError, match="cannot be called with the graph's inputs"):
        conformance.graph(path, source=torch.nn.Linear(WIDTH + 1, 3))


@pytest.mark.parametrize(("scale", "status"), [(0.25, "passed"), (0.5, "failed")])
def test_a_graph_of_bfloat16_is_judged_as_any_other(
    tmp_path: Path, scale: float, status: str
) -> None:
    """It computes in float32 what it takes and gives in a format that numpy has not."""
    names = ("query", "key", "value")
    nodes = [node("Cast", name, f"{name}_wide", to=TensorProto.FLOAT) for name in names]
    nodes += [
        node("Transpose", "key_wide", "turned", perm=[0, 1, 3, 2]),
        node("MatMul", "query_wide turned", "products"),
        node("Mul", "products scale", "scores"),
        node("Softmax", "scores", "weights", axis=-1),
        node("MatMul", "weights value_wide", "mixed"),
        node("Cast", "mixed", "output", to=TensorProto.BFLOAT16),
    ]
    made = model(
        nodes,
        [(name, TensorProto.BFLOAT16, ["b", 2, name, 16]) for name in names],
        [("output", TensorProto.BFLOAT16, ["b", 2, "query", 16])],
        tensors=[tensor("scale", np.float32(scale))],
    )
    candidate = conformance.graph(saved(made, tmp_path / "half.onnx"))
    try:
        ran = results(candidate, "numerics.golden", "shape.dtype")
    finally:
        assert candidate.graph is not None
        candidate.graph.process.close()
    assert [(each.dtype, each.status) for each in ran] == [
        ("bfloat16", "passed"),
        ("bfloat16", status),
    ]
