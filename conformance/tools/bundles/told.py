"""Whether the description of a failure in a report is one: what a bundle of it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...base.dtypes import DTYPES

_DTYPES = (*DTYPES, "int64", "int32", "bool")


def check_told(data: Mapping[str, Any]) -> None:
    """Require calls, layers and tensors as a report holds them; raises ValueError."""
    for name in ("calls", "layers"):
        each = data.get(name, [])
        _check(isinstance(each, list) and all(isinstance(one, dict) for one in each), name)
    for number, call in enumerate(data.get("calls", [])):
        for name in ("arguments", "keywords"):
            _check(isinstance(call.get(name), dict), f"call {number}: {name}")
    for name in ("inputs", "problem"):
        _check(isinstance(data.get(name, {}), dict), name)
    _check(isinstance(data["problem"].get("geometry", {}), dict), "geometry")
    _check_tables(data, "")


def _check_tables(value: Any, place: str) -> None:
    """Every table names a dtype that tensors have, and sizes."""
    if isinstance(value, dict):
        if {"shape", "dtype"} <= set(value):
            sizes = value["shape"]
            whole = isinstance(sizes, list) and all(type(size) is int for size in sizes)
            _check(whole and value["dtype"] in _DTYPES, place)
        for name, one in value.items():
            _check_tables(one, f"{place} {name}".strip())
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for number, one in enumerate(value):
            _check_tables(one, f"{place} {number}")


def _check(holds: bool, place: str) -> None:  # noqa: FBT001 (a condition is what it takes)
    if not holds:
        msg = f"its {place} are not as a report tells them"
        raise ValueError(msg)
