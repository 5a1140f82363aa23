"""The JSON schema of a record, from its types: ``python -m conformance.tools.record_schema``."""

from __future__ import annotations

import inspect
import json
import sys
from types import NoneType, UnionType
from typing import Any, Final, Literal, Required, Union, get_args, get_origin, get_type_hints
from typing import is_typeddict as is_entry

from ..base.record import SCHEMA, VERDICTS, Record

_PLAIN: Final = {bool: "boolean", int: "integer", float: "number", str: "string", NoneType: "null"}
# What the types leave open.
_NARROWER: Final = {
    ("Record", "schema"): {"const": SCHEMA},
    ("CandidateEntry", "verdict"): {"enum": list(VERDICTS)},
}
_OPENING: Final = (
    "The record of a run, as conformance check --json writes it. Later versions may add keys; none "
    "is renamed or removed while `schema` stays the same."
)


def record_schema() -> dict[str, Any]:
    """A schema (draft 2020-12) with a definition for every type of entry."""
    definitions: dict[str, Any] = {}
    _entry(Record, definitions)
    record = definitions.pop("Record")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "attention-conformance record",
        **record,
        "description": _OPENING,
        "required": ["schema", *record["required"]],  # the reader refuses what has none
        "$defs": dict(sorted(definitions.items())),
    }


def _entry(kind: Any, definitions: dict[str, Any]) -> None:
    """Define one kind of entry, and the kinds that it holds."""
    properties: dict[str, Any] = {}
    required: list[str] = []
    definitions[kind.__name__] = {
        "description": inspect.cleandoc(kind.__doc__).replace("``", "`"),
        "type": "object",
        "properties": properties,
        "required": required,
    }
    for name, hint in get_type_hints(kind, include_extras=True).items():
        is_required = get_origin(hint) is Required
        if is_required:
            required.append(name)
        narrower = _NARROWER.get((kind.__name__, name))
        type_ = get_args(hint)[0] if is_required else hint
        properties[name] = narrower or _schema_of(type_, definitions)


def _schema_of(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, parts = get_origin(kind), get_args(kind)
    if is_entry(kind):
        if kind.__name__ not in definitions:
            _entry(kind, definitions)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    if origin is Literal:
        return {"enum": list(parts)}
    if origin in (Union, UnionType):
        return {"anyOf": [_schema_of(part, definitions) for part in parts]}
    if origin is list:
        return {"type": "array", "items": _schema_of(parts[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema_of(parts[1], definitions)}
    return {} if kind is Any else {"type": _PLAIN[kind]}


def render() -> str:
    """The schema as text."""
    return json.dumps(record_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())
