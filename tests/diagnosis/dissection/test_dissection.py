"""What a core computes instead is read, stated with its numbers, and checked before it is said."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

import numpy as np
import onnx
import pytest
import torch
from examples import BARE_FLOAT32, core
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import conformance
from candidates.broken._graphs import HEADS, Eager, Parts, node, put_together
from conformance.clauses.subject import Subject
from conformance.diagnosis import diagnose
from conformance.diagnosis.battery import Observation
from conformance.diagnosis.dissection.reading import read, readable
from conformance.diagnosis.statement_reader import statements


def scores(query: Tensor, key: Tensor) -> Tensor:
    """The right logits."""
    return query @ key.mT / math.sqrt(query.shape[-1])


def euclidean(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Exponentials over the root of the sum of their squares."""
    logits = scores(query, key)
    exponentials = torch.exp(logits - logits.amax(-1, keepdim=True))
    return exponentials / exponentials.square().sum(-1, keepdim=True).sqrt() @ value


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_statements_are_made_in_every_precision(dtype: str) -> None:
    """What is read is compared by the bounds of the dtype: half precision is read as well."""
    candidate = core(euclidean, **{**BARE_FLOAT32, "dtypes": [dtype]})
    (entry,) = diagnose(Subject(candidate, dtype))
    assert entry["name"] == "weights: divided by their length over the keys"


def test_the_number_of_a_statement_is_the_one_that_was_computed() -> None:
    """A factor of 0.37 at every size is told as that number, and no coincidence of a size."""

    def scaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return scaled_dot_product_attention(query, key, value) * 0.37

    (entry,) = diagnose(Subject(core(scaled, **BARE_FLOAT32), "float32"))
    assert entry["text"] == "the outputs of the heads are 0.37 times what they should be"


def test_a_statement_says_for_which_rows_it_holds() -> None:
    """A named mistake that is made for some batch items alone is told with them."""

    def first_item_unscaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = scaled_dot_product_attention(query, key, value)
        output[:1] = scaled_dot_product_attention(query[:1], key[:1], value[:1], scale=1.0)
        return output

    (entry,) = diagnose(Subject(core(first_item_unscaled, **BARE_FLOAT32), "float32"))
    assert entry["name"] == "scale-missing"
    assert "only for the first batch item" in entry["text"]


def test_a_correct_core_is_read_as_it_is() -> None:
    """The weights that are read of a correct core are the golden's, and nothing is stated."""
    subject = Subject(core(scaled_dot_product_attention, **BARE_FLOAT32), "float32")
    observed = Observation(subject).whole
    every = [one.inputs for one in observed if readable(one.inputs)][:6]
    for reading in (read(subject, inputs) for inputs in every):
        assert reading is not None
        assert reading.explained
        error = (reading.weights - reading.attention.weights).abs()
        assert bool((error <= 4.0 * reading.error + 1e-12).all())
    assert statements(subject, observed) == []


def test_a_number_without_a_value_at_some_size_is_no_error() -> None:
    """A scale of 1 / (D - 1) has none at D = 1: the statement is not made there."""
    declared = {**BARE_FLOAT32, "features": ["scale"]}

    def scaled(query: Tensor, key: Tensor, value: Tensor, *, scale: float | None = None) -> Tensor:
        size = query.shape[-1] - 1
        factor = scale if scale is not None else 1.0 / size if size else 1.0
        return torch.softmax(query @ key.mT * factor, dim=-1) @ value

    (entry,) = diagnose(Subject(core(scaled, **declared), "float32"))
    assert entry["name"] == "unknown-mistake" or "less than the head size" in entry["name"]


CAP: Final = (
    node("Div", "logits cap", "quotients"),
    node("Tanh", "quotients", "bounded"),
    node("Mul", "bounded cap", "capped"),
    node("Softmax", "capped", "weighted", axis=-1),
)
GRAPHS: Final[dict[str, tuple[Parts, str]]] = {
    "a factor": (Parts(scale=0.21), "the dot products are multiplied by 0.21"),
    "another axis": (
        Parts(inside=(node("Softmax", "logits", "weighted", axis=-2),)),
        "the softmax runs over the queries",
    ),
    "a softcap": (
        Parts(inside=CAP, tensors={"cap": np.float32(0.7)}),
        "the scores are under a softcap of 0.7",
    ),
}


# A head's own scale: its rows are made of both heads.
OF_ONE_HEAD: Final = (
    node("Mul", "logits factors", "scaled"),
    node("Softmax", "scaled", "weighted", axis=-1),
)
FACTORS: Final = {"factors": np.array([1.0, 0.5], np.float32).reshape(1, HEADS, 1, 1)}


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        GRAPHS["a softcap"],
        (
            Parts(inside=OF_ONE_HEAD, tensors=FACTORS),
            "the scores of the last head are 1/2 times what they should be",
        ),
    ],
)
def test_a_graph_of_one_input_is_stated_without_a_source(
    parts: Parts, said: str, tmp_path: Path
) -> None:
    """Its weights are read off few tokens, since values cannot be changed by themselves."""
    made = put_together(parts)
    del made.graph.input[1:]
    made.graph.input[0].name = "tokens"
    for each in made.graph.node:
        each.input[:] = ["tokens" if x in ("query", "key", "value") else x for x in each.input]
    texts = texts_of(made, tmp_path)
    assert any(said in text for text in texts), texts


def texts_of(made: onnx.ModelProto, folder: Path, source: Eager | None = None) -> list[str]:
    """What the diagnosis of a graph says, with the fact that nothing else knows its weights."""
    onnx.save(made, folder / "model.onnx")
    candidate = conformance.graph(folder / "model.onnx", source=source)
    alone = any("beside --source" in one for one in candidate.declaration.assumptions)
    assert alone == (source is None)
    try:
        return [entry["text"] for entry in diagnose(Subject(candidate, "float32"))]
    finally:
        assert candidate.graph is not None
        candidate.graph.process.close()
