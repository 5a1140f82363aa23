"""What the tolerance allows, what correct implementations use of it, and which mistakes it sees."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch

import conformance
from conformance.oracle.oracle import Oracle
from conformance.problems.materialise import materialise
from conformance.problems.problem import Problem

from .plots import bars

MEASURED: Final = Path(__file__).resolve().parents[2] / "docs" / "tolerance-measured.md"
DTYPES: Final = ("float32", "bfloat16", "float16", "float64")
RULES: Final = ("derived", "2x torch", "assert_close", "1e-2")
SHOWN: Final = (
    "scale x 1.01",
    "scale x 1.0001",
    "weights in bfloat16",
    "epsilon 1e-5 in the sum",
    "last key's weight lost",
    "legitimate runs",
)


def table(title: str, page: str) -> dict[str, dict[str, str]]:
    """A table of the page of measurements: row → column → text."""
    section = page.split(f"\n## {title}\n")[1].split("\n## ", maxsplit=1)[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in section.splitlines()
        if line.startswith("|")
    ]
    head, _, *body = rows
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in body}


def margins() -> str:
    """The largest error over its bound of correct implementations, by dtype and by length."""
    page = MEASURED.read_text(encoding="utf-8")
    found = {
        f"{name} keys" if name.startswith("to ") else name: {
            kind: float(row[kind]) for kind in ("worst case", "statistical") if row[kind] != "-"
        }
        for title in ("False alarms by dtype", "False alarms by number of keys")
        for name, row in table(title, page).items()
        if name != "all"
    }
    runs = table("False alarms by dtype", page)["all"]["runs"]
    note = (
        f"largest error / bound in {runs} runs of correct implementations; above 1: a false alarm"
    )
    return bars("What correct implementations use", found, limit=1.0, most=1.0, note=note)


def power() -> str:
    """How many of the runs with a mistake each rule flags in float32, and how many correct ones."""
    measured = table("Mistakes", MEASURED.read_text(encoding="utf-8"))
    rows: dict[str, dict[str, float]] = {}
    for name in SHOWN:
        found = re.fullmatch(r"(\d+) / (\d+) / (\d+) / (\d+) of (\d+)", measured[name]["float32"])
        if found is None:
            msg = f"{MEASURED}: the row of {name} has no counts for float32"
            raise LookupError(msg)
        flagged, runs = [int(each) for each in found.groups()[:-1]], int(found[5])
        rows[name] = {rule: count / runs for rule, count in zip(RULES, flagged, strict=True)}
    note = "part of the float32 runs that each rule flags; of the legitimate runs it should be none"
    return bars("What rules see", rows, limit=None, most=1.0, note=note, form=".0%")


def parts() -> str:
    """What the bound of one element consists of, under three declarations."""
    declared = {
        "float32": conformance.core(dtypes=["float32"]),
        "bfloat16, eager": conformance.core(dtypes=["bfloat16"]),
        "bfloat16, fused": conformance.core(dtypes=["bfloat16"], scores="fused"),
    }
    rows = dict(_shares(name, decorate) for name, decorate in declared.items())
    note = "parts of the bound of one element: head size 64, 128 keys, ordinary numbers"
    return bars("What a bound consists of", rows, limit=None, most=1.0, note=note, form=".0%")


def _shares(name: str, decorate: Callable[..., Any]) -> tuple[str, Mapping[str, float]]:
    """The declaration with the bound of one element, and the share of each stage in it."""
    candidate, dtype = decorate(_never), name.partition(",")[0]
    sizes = conformance.Geometry(
        batch=1,
        num_heads=1,
        num_kv_heads=1,
        query_length=4,
        key_length=128,
        head_size=64,
        value_head_size=64,
        query_size=64,
        key_size=64,
        value_size=64,
        output_size=64,
    )
    inputs = materialise(Problem(geometry=sizes, dtype=dtype, seed=0), candidate)
    oracle, element = Oracle(candidate.declaration, dtype), (0, 0, 0, 0)
    bound = float(oracle.answer(inputs).bound[element])
    shares = oracle.shares(inputs, element)
    told = {stage: share for stage, share in shares.items() if round(share, 2) > 0}
    return f"{name} {bound:.1e}", told


def _never(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """What nobody calls: bounds need no answer."""
    raise AssertionError(query, key, value)
