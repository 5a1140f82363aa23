"""Every input of a graph has an influence."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from examples import run_clause
from exported import Altered, Layer, Outputs, Plan, Run, opened

from conformance.clauses.export_file import has_influence
from conformance.graphs.process import Feeds, Setting
from conformance.graphs.protocol import GraphRefused
from conformance.graphs.reading import Role
from conformance.graphs.sidecar import GraphDeclaration

SLUG = "export.inputs-matter"
LAYER = Layer()


def test_a_right_graph_reads_everything(tmp_path: Path) -> None:
    """Queries, keys, values and the mask change the answer, each alone."""
    result = run_clause(opened(tmp_path, Plan(), source=LAYER), SLUG, examples=20)
    assert (result.status, result.binding) == ("passed", result.examples)


def test_a_dropped_mask_is_named(tmp_path: Path) -> None:
    """A mask that nothing reads fails, and the message says which input it is."""
    result = run_clause(opened(tmp_path, Plan(masked=False), source=LAYER), SLUG)
    assert result.status == "failed"
    assert result.reason == "changing the input 'mask' (keep) changes no output"


@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_a_baked_input_is_named(tmp_path: Path, name: str) -> None:
    """An input that was taken for a constant when the graph was traced has no influence."""

    def alter(feeds: Feeds, _setting: Setting, run: Run) -> Outputs:
        drawn = np.random.default_rng(1).standard_normal(feeds[name].shape)
        return run({**feeds, name: drawn.astype(np.float32)})

    candidate = opened(tmp_path, Plan(), process=lambda path: Altered(path, alter))
    result = run_clause(candidate, SLUG)
    assert result.status == "failed"
    assert f"changing the input '{name}'" in result.reason


def test_a_declared_constant_is_left_alone(tmp_path: Path) -> None:
    """What the user declares to be a constant need not matter."""
    candidate = opened(tmp_path, Plan(masked=False))
    assert candidate.graph is not None
    declaration = GraphDeclaration(inputs={"mask": {"role": "constant"}})
    graph = dataclasses.replace(candidate.graph, declaration=declaration)
    result = run_clause(dataclasses.replace(candidate, graph=graph), SLUG)
    assert result.status == "passed"


@pytest.mark.parametrize(
    ("role", "axes", "dtype", "value", "other"),
    [
        ("keep", "BK", "bool", [[True, True]], [[False, True]]),
        ("drop", "BK", "bool", [[False, False]], [[True, False]]),
        ("keep_int", "BK", "int64", [[1, 1]], [[0, 1]]),
        ("drop_int", "BK", "int32", [[0, 0]], [[1, 0]]),
        ("lengths", "B", "int64", [5, 4], [1, 1]),
        ("constant", "", "bool", True, False),
        ("constant", "", "int64", 3, 4),
    ],
)
def test_what_an_input_is_changed_to(
    role: str, axes: str, dtype: str, value: object, other: object
) -> None:
    """A mask hides the first key, lengths keep one key, flags and numbers become others."""
    values = []

    def run(feeds: Feeds) -> Outputs:
        values.append(feeds["m"])
        return {"y": feeds["m"]}

    feeds = {"m": np.array(value, dtype)}
    assert has_influence(run, Role(name="m", role=role, axes=axes, dtype=dtype), feeds)
    assert values[-1].tolist() == other


def test_a_refusal_is_an_influence() -> None:
    """An input that may not have another value is read."""

    def run(feeds: Feeds) -> Outputs:
        if feeds["n"] != 3:
            msg = "not 3"
            raise GraphRefused(msg)
        return {"y": np.zeros(2)}

    role = Role(name="n", role="constant", dtype="int64")
    assert has_influence(run, role, {"n": np.array(3)})
