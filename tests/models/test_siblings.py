"""Attentions unlike their siblings."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import helper

from candidates.exports import by_tracing
from candidates.models.catalogue import encoder
from conformance.models.candidates import describe_sites
from conformance.models.siblings import unlike_siblings, ways_of
from conformance.models.sites import find_sites


def test_heads_and_rules_of_siblings_agree() -> None:
    """An odd one is told where all others of equal places agree; two of each are a pattern."""

    def told(causal: str, heads: tuple[int, ...], sinks: str = "") -> list[str]:
        described = [
            {
                "index": at,
                "scope": f"layers.{at}.attention",
                "nodes": ["n"],
                "misplaced": "",
                "causal": causal[at] == "c",
                "heads": own,
                "kv_heads": own,
                "head_size": 8,
                "sinks": sinks[at : at + 1] == "s",
            }
            for at, own in enumerate(heads)
        ]
        return list(unlike_siblings(described, {}))  # type: ignore[arg-type]  # as much as is read

    (line,) = told("cncc", (4, 4, 4, 4))
    assert "attention #1 is unlike the 3 others of its kind in its rule: not causal" in line
    (line,) = told("ccc", (4, 4, 2))
    assert "attention #2" in line
    assert "in its heads: 2 of 8" in line
    assert not told("cncn", (4, 4, 2, 2))
    (line,) = told("cccc", (4, 4, 4, 4), "s-ss")
    assert "attention #1 is unlike the 3 others of its kind in its sinks: without sinks" in line
    assert not told("cccc", (4, 4, 4, 4), "sss-")  # as the last of a period


def test_what_lies_between_projection_and_attention_agrees(tmp_path: Path) -> None:
    """A layer whose key is changed on its way, as by positions, alone among its siblings."""
    path = by_tracing(encoder(3), tmp_path / "encoder.onnx")
    sites = find_sites(path)
    assert not list(unlike_siblings(describe_sites(sites), ways_of(sites)))
    model, name = onnx.load(path), sites.sites[1].key.operand
    at = next(at for at, node in enumerate(model.graph.node) if name in node.input)
    reader = model.graph.node[at]
    reader.input[list(reader.input).index(name)] = "changed"
    model.graph.node.insert(at, helper.make_node("Neg", [name], ["changed"]))
    onnx.save(model, path)
    sites = find_sites(path)
    (line,) = unlike_siblings(describe_sites(sites), ways_of(sites))
    assert "attention #1" in line
    assert "in its key: from a projection by" in line
    assert "1 Neg" in line
