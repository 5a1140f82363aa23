"""``conformance identify`` of an ONNX file: its attentions, and what cannot be judged alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from little_graphs import node, plus_one, saved
from whole_models import token_graph, written

from candidates.exports import by_tracing
from candidates.models import MODELS
from conformance.__main__ import run

pytestmark = pytest.mark.usefixtures("warm_workers")


def test_the_attentions_are_listed(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row for each of them, and the same as JSON."""
    by_tracing(MODELS["decoder"], workspace / "decoder.onnx")
    assert run(["identify", "decoder.onnx", "--json", "out.json"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    for index, other in (("0", "1"), ("1", "0")):
        (row,) = [row for row in rows if row[:1] == [index]]
        assert row[1] == f"tower.layers.{index}.attention"
        assert " ".join(row[2:]).startswith("4 heads of 4 (2 key/value heads) 0.5 keep mask of")
        assert row[-2:] == ["causal", other]
    report = json.loads((workspace / "out.json").read_text(encoding="utf-8"))
    assert [site["index"] for site in report["sites"]] == [0, 1]
    assert (report["model"], report["uncut"], report["identified"]) == (True, [], True)


def test_one_of_them_is_listed_by_its_number(workspace: Path) -> None:
    """``model.onnx#1``."""
    by_tracing(MODELS["encoder"], workspace / "encoder.onnx")
    assert run(["identify", "encoder.onnx#1", "--json", "out.json"]) == 0
    report = json.loads((workspace / "out.json").read_text(encoding="utf-8"))
    assert [site["index"] for site in report["sites"]] == [1]


def test_what_cannot_be_judged_is_listed_with_the_reason(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is identified then."""
    middle = [node("Mul", "scores bias", "capped"), node("Softmax", "capped", "weights", axis=-1)]
    saved(token_graph(middle), workspace / "model.onnx")
    assert run(["identify", "model.onnx", "--json", "out.json"]) == 1
    assert "not judged: Softmax weights: the Mul node" in capsys.readouterr().out
    report = json.loads((workspace / "out.json").read_text(encoding="utf-8"))
    assert [entry["nodes"] for entry in report["uncut"]] == [["Softmax weights"]]


def test_a_graph_without_attention_has_none(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says so, and exits with 1."""
    saved(plus_one(), workspace / "sum.onnx")
    assert run(["identify", "sum.onnx"]) == 1
    assert "there is no attention in this graph" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("missing.onnx", "there is no file missing.onnx"),
        ("junk.onnx", "junk.onnx is no ONNX graph"),
        ("model.onnx#1", "model.onnx has no attention #1: it has 1"),
    ],
)
def test_bad_input_is_one_sentence(
    target: str, words: str, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And exit code 2."""
    (workspace / "junk.onnx").write_bytes(b"\x00junk")
    written(workspace / "model.onnx")
    assert run(["identify", target]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


UNSCALED = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = config.num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(config.d_model, config.d_model) for _ in "qkvo")

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for p in (self.q, self.k, self.v))
        return x + self.o(((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed = nn.Embedding(config.vocab_size, config.d_model)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))

    def forward(self, input_ids=None, decoder_input_ids=None):
        if decoder_input_ids is None:
            raise ValueError("either decoder_input_ids or labels")
        x = self.embed(input_ids) + self.embed(decoder_input_ids)
        for block in self.blocks:
            x = block(x)
        return x
"""


def test_a_model_without_a_scale_is_declared_by_lines_that_can_be_pasted(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is open whether a model means what T5 means, until the lines that identify gives say so.

    The settings that its constructor reads count its layers: there is one at least.
    """
    (workspace / "unscaled.py").write_text(UNSCALED, encoding="utf-8")
    asked = ["--profile", "smoke", "--only", "numerics.golden"]
    assert run(["check", "unscaled.py:Model", *asked]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "with the lines of 'conformance identify unscaled.py:Model'" in shown
    assert run(["identify", "unscaled.py:Model"]) == 0
    _, _, pasted = capsys.readouterr().out.partition("A declaration to paste:")
    assert "num_layers=1" in pasted
    (workspace / "declared.py").write_text(pasted, encoding="utf-8")
    assert run(["check", "declared.py", *asked]) == 0
    assert "conforms-with-deviations" in capsys.readouterr().out
