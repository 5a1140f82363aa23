"""The published schema of records is that of their types, and refuses what their reader refuses."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from _paths import CHECKOUT
from jsonschema import Draft202012Validator
from view_records import RECORDS

import conformance
from conformance.base.record import Record, _wrong
from conformance.tools.record_schema import render

PUBLISHED = (CHECKOUT / "docs" / "record.schema.json").read_text(encoding="utf-8")
SCHEMA = Draft202012Validator(json.loads(PUBLISHED))
# One value of each type of JSON, and words that no field knows.
OTHERS: tuple[Any, ...] = (None, True, 7, 0.5, "other", ["other"], {"other": "other"})


def test_published_schema_is_not_stale() -> None:
    """The file is what the types say today, and a schema by its own standard."""
    assert render() == PUBLISHED, (
        "run: python -m conformance.tools.record_schema > docs/record.schema.json"
    )
    Draft202012Validator.check_schema(json.loads(PUBLISHED))


@pytest.mark.parametrize("name", RECORDS)
def test_records_are_valid(name: str) -> None:
    """Records with every status and verdict are valid."""
    SCHEMA.validate(json.loads(json.dumps(RECORDS[name])))


def test_a_run_writes_a_valid_record() -> None:
    """So is the record of a run, with a failure, its diagnosis and its smallest input."""

    @conformance.core()
    def unscaled(query: Any, key: Any, value: Any) -> Any:
        return (query @ key.mT).softmax(-1) @ value

    report = conformance.check(unscaled, profile="quick", only="numerics.scale", exitfirst=True)
    record = json.loads(report.to_json())
    assert record["candidates"][0]["causes"]
    SCHEMA.validate(record)


@pytest.mark.parametrize(
    "change",
    [{"schema": 2}, {"candidates": {}}, {"seed": 0.5}, {"stale_expectations": [{"why": "gone"}]}],
    ids=str,
)
def test_what_is_no_record_is_refused(change: dict[str, Any]) -> None:
    """Another schema, another type, and an entry without a key that it needs are invalid."""
    record = json.loads(json.dumps(next(iter(RECORDS.values()))))
    assert SCHEMA.is_valid(record)
    assert not SCHEMA.is_valid({**record, **change})


def test_schema_and_reader_agree() -> None:
    """Whatever value of a record is replaced by one of another type, both refuse it or neither."""
    record = json.loads(json.dumps(RECORDS["every status"]))
    refused = 0
    for place in _places(record):
        for other in OTHERS:
            changed = copy.deepcopy(record)
            holder = changed
            for key in place[:-1]:
                holder = holder[key]
            holder[place[-1]] = other
            if place[-1] in ("schema", "verdict"):  # the types leave their words open
                continue
            is_valid = SCHEMA.is_valid(changed)
            assert is_valid == (_wrong(changed, Record, "it") == ""), (place, other)
            refused += not is_valid
    assert refused > 100


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each of the first two entries of every list and each entry of every object."""
    inside: Any = ()
    if isinstance(value, dict):
        inside = value.items()
    elif isinstance(value, list):
        inside = enumerate(value[:2])
    for key, entry in inside:
        yield (*place, key)
        if len(place) < 6:
            yield from _places(entry, (*place, key))
