"""``read_roles`` on what is no attention, cannot be called, or is lost."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from graph_exports import (
    WIDTH,
    dynamic,
    export,
    numbers,
    of_heads,
    of_layer,
    runner,
    separate,
)
from role_reading import SEPARATE, read
from torch import Tensor, nn

from conformance.errors import UsageError
from conformance.graphs.protocol import GraphLost
from conformance.graphs.roles import read_roles
from conformance.graphs.sidecar import GraphDeclaration
from conformance.graphs.validation import read_header

Inputs = Mapping[str, Tensor]
TOKENS = {"x": numbers(3, 5, WIDTH)}
OPEN = dynamic(x="b s")


def perceptron(*after: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, WIDTH), *after)


def pairs(count: int) -> dict[str, Tensor]:
    return {name: numbers(3, 5, WIDTH) for name in "abc"[:count]}


STRANGERS: dict[str, tuple[nn.Module, Inputs, dict[str, dict[int, str]]]] = {
    "perceptron": (perceptron(), TOKENS, OPEN),
    "perceptron of rows": (perceptron(), {"x": numbers(3, WIDTH)}, dynamic(x="b")),
    "classifier": (perceptron(nn.Softmax(-1)), {"x": numbers(3, WIDTH)}, dynamic(x="b")),
    "softmax over positions": (perceptron(nn.Softmax(-2)), TOKENS, OPEN),
    "ReLU": (nn.ReLU(), TOKENS, OPEN),
    "layer norm": (nn.LayerNorm(WIDTH), TOKENS, OPEN),
    "convolution": (nn.Conv1d(5, 5, 3, padding=1), TOKENS, dynamic(x="b")),
    "image": (nn.Conv2d(3, 8, 3), {"x": numbers(3, 3, 8, 8)}, dynamic(x="b")),
    "words": (
        nn.Sequential(nn.Embedding(9, WIDTH), nn.Linear(WIDTH, 2)),
        {"x": torch.zeros(3, 5, dtype=torch.int64)},
        OPEN,
    ),
    "sum": (of_heads(lambda a, b: a + b), pairs(2), dynamic(a="b s", b="b s")),
    "product": (
        of_heads(lambda a, b: a @ b),
        {"a": numbers(5, WIDTH), "b": numbers(WIDTH, 7)},
        dynamic(a="s", b=". t"),
    ),
    "three by three": (
        of_heads(lambda a, b, c: a * b + c),
        pairs(3),
        dynamic(a="b s", b="b s", c="b s"),
    ),
    "mean of positions": (of_heads(lambda x: x + x.mean(1, keepdim=True)), TOKENS, OPEN),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", STRANGERS)
def test_what_is_no_attention_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    """The sentence names the file and says why; it is no reading that clauses would then fail."""
    with pytest.raises(UsageError) as caught:
        read(tmp_path, *STRANGERS[name])
    assert "graph.onnx" in str(caught.value)
    assert "\n" not in str(caught.value)


def plain(layer: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return layer(query, key, value)[0]


def test_the_refusal_says_how_to_declare(tmp_path: Path) -> None:
    """It names the sidecar and a line of it."""
    with pytest.raises(UsageError, match=r"graph\.conformance\.toml.*\[inputs\.NAME\] role"):
        read(tmp_path, *STRANGERS["perceptron"])


def test_a_declaration_of_an_input_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """With the name that was meant."""
    declaration = GraphDeclaration(inputs={"qq": {"role": "query"}}, where="declared.toml")
    with pytest.raises(UsageError, match=r"declared\.toml: graph\.onnx has no input 'qq'.*'q'"):
        read(tmp_path, of_layer(plain), separate(), SEPARATE, declaration=declaration)


def test_a_declaration_with_other_axes_than_the_file_is_refused(tmp_path: Path) -> None:
    """Two letters for three axes."""
    declaration = GraphDeclaration(
        inputs={"q": {"role": "query", "axes": "LE"}}, where="declared.toml"
    )
    with pytest.raises(UsageError, match=r"input 'q' has 3 axes in graph\.onnx"):
        read(tmp_path, of_layer(plain), separate(), SEPARATE, declaration=declaration)


def test_a_graph_that_is_lost_is_lost(tmp_path: Path) -> None:
    """GraphLost goes through: it is a verdict, and no reason to try on."""
    path = export(tmp_path / "graph.onnx", of_layer(plain), separate(), dynamic=SEPARATE)
    run, calls = runner(path), []
    lost = GraphLost("it died", kind="crashed")

    def dying(feeds: Mapping[str, Any]) -> dict[str, Any]:
        calls.append(1)
        if len(calls) > 10:
            raise lost
        return run(feeds)

    with pytest.raises(GraphLost):
        read_roles(read_header(path), dying, GraphDeclaration())


def test_reading_takes_few_calls(tmp_path: Path) -> None:
    """A run is a message to a child: three inputs and a mask take no more than a hundred."""
    module = of_layer(
        lambda layer, q, k, v, z: layer(q, k, v, masking=lambda x: x.masked_fill(~z, -1e9))[0]
    )
    inputs = separate(z=torch.ones(5, 7, dtype=torch.bool))
    axes = {**SEPARATE, **dynamic(z="sq sk")}
    path = export(tmp_path / "graph.onnx", module, inputs, dynamic=axes)
    run, calls = runner(path), []
    read_roles(read_header(path), lambda feeds: calls.append(1) or run(feeds), GraphDeclaration())
    assert len(calls) <= 100


@pytest.mark.parametrize(
    ("roles", "sentence"),
    [
        ({"a": "query", "b": "key"}, "gives a the role query and b the role key, which do not fit"),
        ({"a": "query", "b": "query"}, "they have the roles x or query, context or query, key, va"),
    ],
)
def test_roles_that_no_attention_has_together_are_refused(
    roles: Mapping[str, str], sentence: str, tmp_path: Path
) -> None:
    """The sentence names them, and those that it can have."""
    said = {name: {"role": role} for name, role in roles.items()}
    declaration = GraphDeclaration(inputs=said, where="declared.toml")
    with pytest.raises(UsageError, match=sentence):
        read(tmp_path, *STRANGERS["sum"], declaration=declaration)


@pytest.mark.parametrize("value", ["high", [1.0, 2.0], {}])
def test_a_constant_that_does_not_fit_is_refused(value: object, tmp_path: Path) -> None:
    """Where the file leaves its sizes open one number fits, and nothing else."""
    module = of_layer(lambda layer, q, k, v, z: layer(q, k, v, masking=lambda x: x + z)[0])
    said = {"z": {"role": "constant", "value": value}}
    with pytest.raises(UsageError, match=r"gives z the value .*, which is no float32 of shape"):
        read(
            tmp_path,
            module,
            separate(z=torch.zeros(5, 7)),
            {**SEPARATE, **dynamic(z="sq sk")},
            declaration=GraphDeclaration(inputs=said),
        )


def test_axes_of_heads_are_those_of_query_key_and_value(tmp_path: Path) -> None:
    """Tokens of one input have no heads: a declaration that says so is told, and ends nothing."""
    declared = GraphDeclaration(inputs={"x": {"role": "x", "axes": "BLM"}}, where="m.toml")
    layer = of_layer(lambda layer, x: layer(x, x, x)[0])
    with pytest.raises(UsageError, match=r"^m\.toml names axes with M, which heads have, but"):
        read(tmp_path, layer, TOKENS, OPEN, declaration=declared)
