"""The picture of a failure: what was read is what the candidate weighs with, or there is none."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from examples import BARE, core, layer
from torch import Tensor

from conformance.base.geometry import Geometry
from conformance.base.record import PictureEntry
from conformance.base.results import plain
from conformance.clauses.subject import Subject
from conformance.declare.candidate import Candidate
from conformance.diagnosis.picture import MOST_SHOWN, MOST_TRIES, Illustrator, picture
from conformance.problems.problem import MaskPlan, Problem

FOUND = [{"name": "scale-missing", "text": "no scale", "fix": "", "confidence": 1.0}]


def problem(
    queries: int = 3, keys: int = 5, heads: int = 2, dtype: str = "float32", **more: Any
) -> Problem:
    """A problem of two items and heads of four channels."""
    width = 4 * heads
    sizes = Geometry(
        batch=2,
        num_heads=heads,
        num_kv_heads=heads,
        query_length=queries,
        key_length=keys,
        head_size=4,
        value_head_size=4,
        query_size=width,
        key_size=width,
        value_size=width,
        output_size=width,
    )
    return Problem(geometry=sizes, dtype=dtype, seed=5, **more)


def drawn(
    candidate: Candidate | Callable[..., Tensor], asked: Problem | None = None
) -> PictureEntry | None:
    """The picture of a candidate, or of a function that promises nothing, on a problem."""
    made = candidate if isinstance(candidate, Candidate) else core(candidate, **BARE)
    asked = asked or problem()
    subject = Subject(made, asked.dtype)
    return picture(subject, subject.inputs(asked))


def shown(candidate: Candidate | Callable[..., Tensor], asked: Problem | None = None) -> Any:
    """The same, which is there."""
    made = drawn(candidate, asked)
    assert made is not None
    return made


def scores(query: Tensor, key: Tensor) -> Tensor:
    """The right logits."""
    return query @ key.mT / math.sqrt(query.shape[-1])


def right(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A right core."""
    return scores(query, key).softmax(-1) @ value


def unscaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A core without a scale."""
    return (query @ key.mT).softmax(-1) @ value


def test_both_weights_are_those_of_the_worst_head() -> None:
    """Expected and got are the two softmaxes of the head that is told, of how many is told, too."""
    subject = Subject(core(unscaled, **BARE), "float32")
    inputs = subject.inputs(problem())
    entry = shown(unscaled)
    query, key = inputs.query.double(), inputs.key.double()
    got, expected = (query @ key.mT).softmax(-1), scores(query, key).softmax(-1)
    place = (entry["item"], entry["head"])
    torch.testing.assert_close(torch.tensor(entry["got"]).double(), got[place], atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.tensor(entry["expected"]).double(), expected[place])
    errors = (got - expected).abs()
    assert errors[place][tuple(entry["worst"])] == errors.max()
    assert (entry["items"], entry["heads"], entry["sizes"]) == (2, 2, [3, 5])


def test_logits_show_a_factor() -> None:
    """Without the scale every logit is twice what it should be, for heads of four channels."""
    logits = shown(unscaled)["logits"]
    got, expected = (
        torch.tensor(logits[name], dtype=torch.float64) for name in ("got", "expected")
    )
    torch.testing.assert_close(got, 2.0 * expected, atol=1e-3, rtol=1e-3)


def test_logits_are_left_out_where_keys_are() -> None:
    """Where other keys are attended nothing is wrong with the logits."""
    causal = core(sees_next, **{**BARE, "causal": "top-left"})
    assert "logits" not in shown(causal, problem(5, 5, causal=True))


def sees_next(query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False) -> Tensor:
    """A core whose causal diagonal is one too far."""
    logits = scores(query, key)
    if causal:
        logits = logits.masked_fill(torch.ones_like(logits).triu(2).bool(), -math.inf)
    return logits.softmax(-1) @ value


def test_hidden_keys_are_told() -> None:
    """A query sees the key behind it, which is marked as hidden and as wrong."""
    entry = shown(core(sees_next, **{**BARE, "causal": "top-left"}), problem(5, 5, causal=True))
    assert entry["hidden"] == torch.ones(5, 5).triu(1).bool().tolist()
    for query in range(4):
        assert entry["got"][query][query + 1] > 0
        assert entry["expected"][query][query + 1] == 0
        assert entry["wrong"][query][query + 1]
    assert entry["wrong"][4] == [False] * 5
    assert "the hidden key" in entry["text"]


def test_a_weight_that_is_no_number_is_a_text() -> None:
    """A row without keys that is NaN is shown so, and JSON can hold it."""

    def nan_rows(query: Tensor, key: Tensor, value: Tensor, *, keep: Any = None) -> Tensor:
        logits = scores(query, key)
        return (logits if keep is None else logits.masked_fill(~keep, -math.inf)).softmax(
            -1
        ) @ value

    mask = MaskPlan(pattern="empty-rows", form="keep", shape="B11K", finite_bias=False)
    candidate = core(nan_rows, **{**BARE, "masks": ["keep"], "empty_rows": "zeros"})
    entry = shown(candidate, problem(mask=mask))
    assert all(math.isnan(cell) for cell in entry["got"][entry["worst"][0]])
    assert "nan" in json.loads(json.dumps(plain(entry), allow_nan=False))["got"][entry["worst"][0]]


def test_large_tables_are_a_window_around_the_worst() -> None:
    """Of 40 keys 16 are shown, among them the one that is lost."""

    def loses_one(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        weights = scores(query, key).softmax(-1).clone()
        weights[..., 30] = 0.0
        return weights @ value

    entry = shown(loses_one, problem(20, 40))
    assert entry["sizes"] == [20, 40]
    assert entry["worst"][1] == 30
    assert entry["first"][1] <= 30 < entry["first"][1] + MOST_SHOWN
    for name in ("expected", "got", "hidden", "wrong"):
        assert [len(entry[name]), len(entry[name][0])] == [MOST_SHOWN, MOST_SHOWN]
    at = 30 - entry["first"][1]
    assert all(row[at] == 0.0 for row in entry["got"])


def test_half_precision_rounds_and_is_not_wrong() -> None:
    """A right core in bfloat16 has no picture; one without a scale has."""
    promises = {**BARE, "dtypes": ["bfloat16"]}
    assert drawn(core(right, **promises), problem(dtype="bfloat16")) is None
    assert drawn(core(unscaled, **promises), problem(dtype="bfloat16")) is not None


def test_a_layer_is_read_through_its_projections() -> None:
    """The weights of a layer without a scale are wrong as its core's are, and logits say twice."""

    class Unscaled:
        """A layer that multiplies its queries by what the scale divides by."""

        def __init__(self, geometry: Any, weights: Any) -> None:
            self.geometry, self.weights = geometry, weights

        def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            """Answer tokens with tokens."""
            heads = [
                torch.nn.functional.linear(tokens, getattr(self.weights, name))
                .unflatten(-1, (self.geometry.num_heads, -1))
                .transpose(1, 2)
                for tokens, name in ((query, "q"), (key, "k"), (value, "v"))
            ]
            answer = unscaled(*heads).transpose(1, 2).flatten(2)
            return torch.nn.functional.linear(answer, self.weights.o)

    promises = {"masks": [], "causal": None, "features": [], "empty_rows": "any"}
    entry = shown(layer(Unscaled, **promises), problem(biases=False))
    logits = entry["logits"]
    got, expected = (
        torch.tensor(logits[name], dtype=torch.float64) for name in ("got", "expected")
    )
    torch.testing.assert_close(got, 2.0 * expected, atol=1e-2, rtol=1e-2)


def squared(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """An answer that is not linear in the values."""
    return unscaled(query, key, value) ** 2


def noisy(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Another answer each time."""
    return unscaled(query, key, value) + torch.rand(())


def rolled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Heads of the answer exchanged: the weights are not what is wrong."""
    return right(query, key, value).roll(1, 1)


@pytest.mark.parametrize("function", [right, squared, noisy, rolled])
def test_nothing_is_invented(function: Callable[..., Tensor]) -> None:
    """There is no picture where no weight is wrong, nor where weights do not explain the answer."""
    assert drawn(function) is None


def test_values_that_are_keys_are_not_read() -> None:
    """The values of a call whose key is its value cannot be changed alone."""
    subject = Subject(core(unscaled, **BARE), "float32")
    inputs = subject.inputs(problem())
    assert picture(subject, inputs.replace(mode="memory", value=inputs.key)) is None


def test_one_picture_a_name() -> None:
    """The first failure of a name has it, later ones only on smaller problems; others their own."""
    illustrator = Illustrator(Subject(core(unscaled, **BARE), "float32"))
    first, second = (illustrator.illustrated(FOUND, problem()) for _ in range(2))
    assert "picture" in first[0]
    assert second == FOUND
    assert illustrator.illustrated(FOUND, problem(keys=6)) == FOUND
    assert illustrator.illustrated(FOUND, problem(keys=2))[0]["picture"]["sizes"] == [3, 2]
    other = [{**FOUND[0], "name": "other"}]
    assert "picture" in illustrator.illustrated(other, problem())[0]
    assert "picture" not in FOUND[0]


def test_what_cannot_be_read_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a few failures without a picture of their mistake no more is read for it."""
    illustrator = Illustrator(Subject(core(squared, **BARE), "float32"))
    for _ in range(MOST_TRIES):
        assert illustrator.illustrated(FOUND, problem()) == FOUND
    monkeypatch.setattr("conformance.diagnosis.picture.picture", None)
    assert illustrator.illustrated(FOUND, problem()) == FOUND
