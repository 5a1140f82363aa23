"""ONNX's node tests of ``Attention`` against the golden; see docs/onnx-vectors.md."""

from __future__ import annotations

from collections import Counter

import onnx
import pytest
import torch
from _paths import CHECKOUT
from onnx_vectors import Expected, Vector, expanded_vectors, expectations, vectors
from torch import Tensor

# By the version of onnx, the vectors of each dtype. All of them are asked; none is left out.
COUNTS = {"1.23.2": {"float32": 82, "float16": 6, "bfloat16": 5}}
EVERY = pytest.mark.parametrize("name", sorted(vectors()))


def _beyond(expected: Expected, got: Tensor) -> Tensor:
    """Where an output lies beyond its bound; minus infinity must be met exactly."""
    infinite = torch.isneginf(expected.value)
    error = (got - expected.value).masked_fill(infinite, 0.0).abs()
    return ~(error <= expected.bound.masked_fill(infinite, 0.0)) | (infinite != torch.isneginf(got))


def _outputs(vector: Vector) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array).double() for name, array in vector.outputs.items()}


def test_every_vector_is_asked() -> None:
    """The number of vectors of each dtype is known, so that none can go missing unseen."""
    counts = Counter(vector.dtype for vector in vectors().values())
    known = COUNTS.get(onnx.__version__)
    if known is not None:
        assert counts == known
    assert sum(counts.values()) >= 93


@EVERY
def test_the_golden_agrees(name: str) -> None:
    """Each output of a vector lies within the derived bound of its dtype around the golden's."""
    vector = vectors()[name]
    expected, got = expectations(vector), _outputs(vector)
    assert set(expected) == set(got)
    for output, answer in got.items():
        assert answer.shape == expected[output].value.shape, output
        assert not bool(_beyond(expected[output], answer).any()), output


@EVERY
def test_expanded_vectors_hold_the_same_data(name: str) -> None:
    """The vectors of the function body ask nothing else: same inputs, same expected outputs."""
    vector = vectors()[name]
    inputs, outputs = expanded_vectors()[f"{name}_expanded"]
    for arrays, mine in ((inputs, vector.inputs), (outputs, vector.outputs)):
        theirs = [
            array.astype(first.dtype) for array, first in zip(arrays, mine.values(), strict=True)
        ]
        for array, first in zip(theirs, mine.values(), strict=True):
            assert array.tobytes() == first.tobytes()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("scale_factor", 1.01),
        ("softmax_axis", "query"),
        ("mask_polarity", "drop"),
        ("mask_operation", "ignore"),
        ("causal_offset", 1),
        ("causal_offset", -1),
        ("causal_combination", "causal-only"),
        ("causal_combination", "mask-only"),
        ("empty_rows", "nan"),
        ("bias_order", "before-scale"),
        ("softcap_order", "after-mask"),
        ("window_offset", 1),
        ("group_order", "tile"),
    ],
)
def test_another_point_is_noticed(field: str, value: object) -> None:
    """A golden that chose otherwise would disagree with some vector: agreement says something."""
    for vector in vectors().values():
        expected, got = expectations(vector, **{field: value}), _outputs(vector)
        if any(bool(_beyond(expected[output], got[output]).any()) for output in got):
            return
    pytest.fail(f"no vector notices {field}={value!r}")


def test_the_document_lists_every_vector() -> None:
    """docs/onnx-vectors.md has a row for each vector and gives their number."""
    text = (CHECKOUT / "docs" / "onnx-vectors.md").read_text(encoding="utf-8")
    rows = [
        line.split("|")[1].strip().strip("`") for line in text.splitlines() if "| `test_" in line
    ]
    assert sorted(rows) == sorted(vectors())
    assert f"{len(rows)} of {len(rows)}" in text
