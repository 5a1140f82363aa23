"""The declaration of a graph: ``model.conformance.toml``, or ``--declaration``."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from .._golden import golden
from ..base.expected import ExpectedFailure, places_of, read_entry, read_text
from ..base.files import parse_toml
from ..errors import UsageError, did_you_mean
from .reading import MASK_ROLES, MODEL_ROLES, OTHER_ROLES, OUTPUT_ROLES, TENSOR_ROLES, Header


@dataclass(frozen=True, kw_only=True)
class GraphDeclaration:
    """A declaration of a graph; omitted facts are inferred from the graph's behaviour.

    inputs, outputs: by the graph's own name: ``{"role": …, "axes": …}`` as in :class:`Role`; for a
        whole model ``{"role": "tokens", "vocabulary": 50}``, ``{"role": "image", "shape": [3, 224,
        224]}``.
    promises: keywords of :func:`conformance.layer`: ``empty_rows``, ``causal``, ``semantics`` …
    num_heads, num_kv_heads: where the graph does not show them.
    precision: "" for that of its dtype, or ``int8-dynamic``.
    where: the declaring file, for messages.
    """

    inputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    outputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    promises: Mapping[str, Any] = field(default_factory=dict)
    num_heads: int | None = None
    num_kv_heads: int | None = None
    name: str | None = None
    precision: str = ""
    where: str = ""


INPUT_ROLES: Final = (*TENSOR_ROLES, *MASK_ROLES, *OTHER_ROLES, *MODEL_ROLES)
PRECISIONS: Final = ("int8-dynamic",)
# Keywords allowed in a declaration; conformance.layer checks their values.
PROMISES: Final[Mapping[str, type | tuple[type, ...]]] = {
    "accumulate": str,
    "always_causal": bool,
    "causal": str,
    "empty_rows": (str, dict),
    "features": list,
    "max_length": int,
    "position": str,
    "without": list,
}
_OWN: Final[Mapping[str, type]] = {
    "name": str,
    "num_heads": int,
    "num_kv_heads": int,
    "precision": str,
    "inputs": dict,
    "outputs": dict,
    "semantics": dict,
    "expected": list,
}
_SHOWN: Final[Mapping[object, str]] = {
    str: "a text",
    (str, dict): "a text or a table",
    int: "a whole number",
    bool: "true or false",
    list: "a list",
}
# The letters of the axes by role: tokens or heads, masks, lengths.
_TENSOR_LETTERS: Final = "BLEHDMF1"
_MASK_LETTERS: Final = "BHQKF1"


def sidecar_of(graph: Path) -> Path | None:
    """The declaration next to a graph, ``model.conformance.toml`` for ``model.onnx``, if any."""
    file = graph.with_name(f"{graph.stem}.conformance.toml")
    return file if file.is_file() else None


def read_declaration(path: Path) -> GraphDeclaration:
    """Read a graph's declaration; raises UsageError naming the file, the key and the remedy."""
    try:
        data = parse_toml(path.read_text(encoding="utf-8-sig"), path)
    except FileNotFoundError:
        msg = f"there is no file {path} with a graph's declaration"
        raise UsageError(msg) from None
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{path} cannot be read as TOML: {getattr(error, 'strerror', None) or error}"
        raise UsageError(msg) from None
    where = str(path)
    types = {**_OWN, **PROMISES}
    for key, value in data.items():
        _check_key(key, types, where)
        wanted = types[key]
        if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
            msg = f"{where}: {key} is {value!r}: give {_SHOWN.get(wanted, 'a table')}"
            raise UsageError(msg)
    for key in ("num_heads", "num_kv_heads"):
        if data.get(key, 1) < 1:
            msg = f"{where}: {key} is {data[key]}: give a positive whole number"
            raise UsageError(msg)
    if "precision" in data:
        _check_word(data["precision"], PRECISIONS, f"{where}: precision")
    return GraphDeclaration(
        inputs={
            name: _read_port(
                entry,
                INPUT_ROLES,
                ("role", "axes", "value", "vocabulary", "shape"),
                f"{where}, input {name!r}",
            )
            for name, entry in data.get("inputs", {}).items()
        },
        outputs=_read_outputs(data.get("outputs", {}), where),
        promises=_read_promises(data, where),
        num_heads=data.get("num_heads"),
        num_kv_heads=data.get("num_kv_heads"),
        name=data.get("name"),
        precision=data.get("precision", ""),
        where=where,
    )


def check_declaration(declaration: GraphDeclaration, header: Header) -> None:
    """Raise UsageError for a declared input or output the graph lacks, or wrong axes."""
    where = declaration.where or "the declaration"
    for kind, said, ports in (
        ("input", declaration.inputs, header.inputs),
        ("output", declaration.outputs, header.outputs),
    ):
        ranks = {port.name: port.rank for port in ports}
        for name, entry in said.items():
            if name not in ranks:
                msg = f"{where}: {header.path.name} has no {kind} {name!r}"
                raise UsageError(msg + did_you_mean(name, ranks))
            axes, rank = entry.get("axes"), ranks[name]
            if axes is not None and rank is not None and len(axes) != rank:
                msg = (
                    f"{where}: {kind} {name!r} has {rank} axes in {header.path.name}, but "
                    f"axes = {axes!r} names {len(axes)}"
                )
                raise UsageError(msg)


def _check_key(key: str, allowed: Collection[str], where: str) -> None:
    if key not in allowed:
        msg = f"{where} has an unknown key {key!r}{did_you_mean(key, allowed)}"
        raise UsageError(msg)


def _check_word(word: object, allowed: Collection[str], where: str) -> None:
    if word not in allowed:
        msg = f"{where} is {word!r}, which is unknown{did_you_mean(str(word), allowed)}"
        raise UsageError(msg)


def _read_outputs(tables: Mapping[str, Any], where: str) -> dict[str, Mapping[str, Any]]:
    result = {
        name: _read_port(entry, OUTPUT_ROLES, ("role", "axes"), f"{where}, output {name!r}")
        for name, entry in tables.items()
    }
    answers = [name for name, entry in result.items() if entry.get("role") == "output"]
    if len(answers) > 1:
        msg = f"{where} gives the role 'output' to {' and '.join(answers)}: only one is the answer"
        raise UsageError(msg)
    return result


def _read_port(
    entry: object, roles: Collection[str], keys: Collection[str], where: str
) -> Mapping[str, Any]:
    """Read a table ``[inputs.NAME]``, or the role alone as in ``inputs.NAME = "query"``."""
    if isinstance(entry, str):
        entry = {"role": entry}
    if not isinstance(entry, Mapping):
        msg = f'{where} is {entry!r}: give a role, or a table such as {{ role = "query" }}'
        raise UsageError(msg)
    for key in entry:
        _check_key(key, keys, where)
    if "role" in entry:
        _check_word(entry["role"], roles, f"{where}: role")
    if "axes" in entry:
        _check_axes(entry["axes"], entry.get("role"), where)
    if "value" in entry:
        _check_value(entry["value"], entry.get("role"), where)
    count = entry.get("vocabulary")
    if count is not None and (type(count) is not int or count < 1 or entry.get("role") != "tokens"):
        msg = f'{where} has the vocabulary {count!r}: give the number of ids, with role = "tokens"'
        raise UsageError(msg)
    if "shape" in entry:
        _check_shape(entry["shape"], entry.get("role"), where)
    return dict(entry)


def read_model_input(entry: object, where: str) -> Mapping[str, Any]:
    """Read the table of one input of a whole module, checked like those of files.

    Raises UsageError.
    """
    roles = [role for role in MODEL_ROLES if role != "past"]
    said = _read_port(entry, roles, ("role", "vocabulary", "shape"), where)
    if "role" not in said:
        msg = f"{where} has no role: give one of {', '.join(roles)}"
        raise UsageError(msg)
    return said


def _check_value(value: object, role: str | None, where: str) -> None:
    """Require numbers, true or false, or a list of them; no NaN, which equals nothing."""
    if role != "constant":
        msg = f'{where} has a value: that is for role = "constant" only'
        raise UsageError(msg)
    numbers = value if isinstance(value, list) else [value]
    if not all(isinstance(one, (int, float)) and not math.isnan(one) for one in numbers):
        msg = f"{where} has the value {value!r}: give a number, true or false, or a list of such"
        raise UsageError(msg)


def _check_shape(shape: object, role: str | None, where: str) -> None:
    """Require the sizes of a picture without the batch, or of one token's features."""
    sizes = shape if isinstance(shape, (list, tuple)) else []
    good = bool(sizes) and all(type(size) is int and size > 0 for size in sizes)
    if not good or role not in ("image", "features"):
        msg = (
            f'{where} has the shape {shape!r}: give sizes such as [3, 224, 224] with role = "image"'
            ', or [80] with role = "features"'
        )
        raise UsageError(msg)


def _check_axes(axes: object, role: str | None, where: str) -> None:
    """Require valid letters for a role's axes, without repetition except of 1."""
    letters = _MASK_LETTERS if role in MASK_ROLES else _TENSOR_LETTERS
    if role is None or role == "weights":
        letters = _TENSOR_LETTERS + _MASK_LETTERS
    good = isinstance(axes, str) and axes and all(letter in letters for letter in axes)
    named = [letter for letter in str(axes) if letter != "1"]
    if not good or len(set(named)) < len(named):
        msg = (
            f"{where}: axes is {axes!r}: give one letter an axis, of {', '.join(letters)}, "
            'such as "BLE" for tokens, "BHLD" for heads or "BHQK" for a mask'
        )
        raise UsageError(msg)


def _read_promises(data: Mapping[str, Any], where: str) -> dict[str, Any]:
    promises = {key: data[key] for key in PROMISES if key in data}
    if "semantics" in data:
        promises["semantics"] = _read_semantics(data["semantics"], where)
    if "expected" in data:
        promises["expected_failures"] = _read_expected(data, where)
    return promises


def _read_semantics(table: Mapping[str, Any], where: str) -> golden.Semantics:
    """Read the table ``[semantics]``: fields in which the graph differs from the standard."""
    fields = [field.name for field in dataclasses.fields(golden.Semantics)]
    for key in table:
        _check_key(key, fields, f"{where}, [semantics]")
    try:
        return golden.STANDARD.replace(**table)
    except (TypeError, ValueError) as error:
        msg = f"{where}, [semantics]: {error}"
        raise UsageError(msg) from None


def _read_expected(data: Mapping[str, Any], where: str) -> tuple[ExpectedFailure, ...]:
    """Read the tables ``[[expected]]``, as in a file of expected failures."""
    path, entries = Path(where), data["expected"]
    places = places_of(read_text(path), path, len(entries))
    result = []
    for number, (entry, place) in enumerate(zip(entries, places, strict=True), 1):
        named = f"{where}, [[expected]] {number}"
        if not isinstance(entry, Mapping):
            msg = f"{named} is {entry!r}: write each expected failure as a table [[expected]]"
            raise UsageError(msg)
        result.append(read_entry(dict(entry), named, place))
    return tuple(result)
