"""A graph that kills or hangs its process: a verdict with the input that did it, and in time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from examples import bare, core, run_clause
from little_graphs import FOREVER, endless, node, tensor
from onnx import ModelProto, NodeProto, TensorProto
from torch import Tensor

from candidates.broken._graphs import Parts, put_together
from conformance.__main__ import run
from conformance.base.results import ClauseResult
from conformance.graphs.protocol import GraphLost, GraphRefused

# What a user may have to wait for any verdict about such a graph.
ONLY = ("--only", "shape.output", "--only", "numerics.golden")

pytestmark = pytest.mark.usefixtures("warm_workers")


def lost_from(length: int, kind: str, calls: list[int]) -> Callable[..., Tensor]:
    """A right core that is lost at so many keys."""

    def function(query: Tensor, key: Tensor, value: Tensor, **_options: Any) -> Tensor:
        calls.append(key.shape[-2])
        if key.shape[-2] >= length:
            msg = f"was lost after {len(calls)} calls"
            raise GraphLost(msg, kind=kind)
        return bare(query, key, value)

    return function


def failing(function: Callable[..., Any]) -> ClauseResult:
    """What becomes of a clause whose first example has more than four keys."""
    candidate = core(function, masks=[], causal=None, features=[], dtypes=["float32"])
    result = run_clause(candidate, "shape.output", explain=True)
    assert result.status == "failed"
    assert result.violation is not None
    return result


def test_a_hang_is_not_reduced() -> None:
    """After the first hang the clause makes one more call that may hang: to record it."""
    calls: list[int] = []
    result = failing(lost_from(4, "hung", calls))
    assert sum(length >= 4 for length in calls) == 2
    assert result.violation is not None
    assert result.violation.kind == "hung"
    assert result.reason.startswith("the graph was lost after")
    assert result.counterexample is not None
    assert result.counterexample["problem"]["geometry"]["key_length"] >= 4
    assert result.counterexample["calls"][0]["refused"]["kind"] == "hung"


@pytest.mark.parametrize("length", [1, 4])
def test_a_crash_is_reduced_a_little(length: int) -> None:
    """A crash is made smaller in a few tries, as each of them may cost a process."""
    calls: list[int] = []
    result = failing(lost_from(length, "crashed", calls))
    assert sum(keys >= length for keys in calls) <= 10
    assert result.violation is not None
    assert result.violation.kind == "crashed"
    assert result.counterexample is not None
    assert result.counterexample["calls"][0]["refused"]["kind"] == "crashed"
    if length == 1:  # the smallest of all problems is tried first
        assert result.counterexample["problem"]["geometry"]["key_length"] == 1


def test_a_refusal_names_no_line_of_the_harness() -> None:
    """What the runtime says of a graph is the message; the program around it is nobody's affair."""

    def refused(*_inputs: Tensor, **_options: Any) -> Tensor:
        msg = "InvalidArgument: Reshape 'flat': the shapes differ"
        raise GraphRefused(msg)

    result = failing(refused)
    assert result.violation is not None
    assert result.violation.kind == "raised"
    assert (
        result.reason == "the graph is refused: InvalidArgument: Reshape 'flat': the shapes differ"
    )


def with_more(nodes: list[NodeProto], tensors: list[TensorProto]) -> ModelProto:
    """A right attention graph whose ``answer`` goes through some nodes to ``output``."""
    made = put_together(Parts(after=nodes))
    made.graph.initializer.extend(tensors)
    return made


def killing() -> ModelProto:
    """An answer plus zero times the least int64 divided by minus the number of items."""
    nodes = [
        node("Shape", "answer", "items", start=0, end=1),
        node("Div", "items items", "one"),
        node("Neg", "one", "divisor"),
        node("Div", "least divisor", "quotient"),
        node("Cast", "quotient", "number", to=TensorProto.FLOAT),
        node("Mul", "number zero", "nothing"),
        node("Add", "answer nothing", "output"),
    ]
    least = tensor("least", np.array([np.iinfo(np.int64).min]))
    return with_more(nodes, [least, tensor("zero", np.float32(0))])


def looping() -> ModelProto:
    """An answer that goes round an endless loop."""
    (loop,) = endless().graph.node
    loop.input[:] = ["turns", "yes", "answer"]
    loop.output[:] = ["output"]
    yes = tensor("yes", np.array(True))  # noqa: FBT003
    return with_more([loop], [tensor("turns", np.int64(FOREVER)), yes])


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (killing, "crashed", "the graph killed its process (SIGFPE)"),
        # test_process stops an endless loop each time; the command waits for its whole limit
        pytest.param(looping, "hung", "the graph gave no answer for", marks=pytest.mark.nightly),
    ],
    ids=["killing", "looping"],
)
def test_the_command_gives_a_verdict(
    folder: Path,
    make: Callable[[], ModelProto],
    kind: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """``conformance check`` ends in time, says what happened on which input, and exits with 1."""
    onnx.save(make(), folder / "model.onnx")
    assert run(["check", "model.onnx", "--profile", "quick", *ONLY, "--json", "out.json"]) == 1
    said = capsys.readouterr()
    assert message in said.out
    assert said.err == ""
    report = json.loads((folder / "out.json").read_text(encoding="utf-8"))
    (candidate,) = report["candidates"]
    (first, *_) = [entry for entry in candidate["clauses"] if entry["status"] == "failed"]
    assert first["violation"]["kind"] == kind
    assert first["counterexample"]["problem"]["geometry"]


@pytest.mark.parametrize(
    ("held", "message"), [(b"", "is empty"), (b"a text\n" * 100, "is a text file")]
)
def test_the_command_refuses_what_is_no_graph(
    folder: Path, held: bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that cannot be opened is one sentence and exit code 2."""
    (folder / "model.onnx").write_bytes(held)
    assert run(["check", "model.onnx"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert message in said.err
    assert "Traceback" not in said.err
    assert len(said.err.strip().splitlines()) == 1
