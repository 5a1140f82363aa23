"""ONNX files as candidates: what is declared of them, and how they are called."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
import torch

import conformance
from candidates.broken._graphs import HEADS, WIDTH, Eager, Parts, put_together
from conformance import Candidate, UsageError
from conformance.profile import PROFILES
from conformance.results import ClauseResult
from conformance.runner import CandidateRun

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
    alone, beside = conformance.graph(path), conformance.graph(path, source=Eager())
    assert alone.graph is not None
    assert beside.graph is not None
    assert "scale" in alone.graph.found.gauge
    assert not beside.graph.found.gauge
    assert results(alone, "numerics.scale")[0].status == "passed"
    assert results(beside, "numerics.scale")[0].status == "failed"


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
