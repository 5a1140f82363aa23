"""Writes test vectors: an index, and for each case a description and a file of bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final

from ...base.files import staged
from ...base.record import TOOL
from ...calls import torch_state
from ...clauses.registry import specification_hash
from ...running.runner import one_thread
from ...running.workers.environment import package_version
from ...running.workers.planning import ANY_SCALE
from ...tolerance import contract_for
from ...tolerance.contract import describe
from .cases import EMPTY_ROWS, STORED_AS, VectorCase, promising, vector_cases
from .checking import ALIGNED, CASES, FORMAT, INDEX, README, SCHEMAS

# What the numbers of a mask mean.
MEANINGS: Final = {
    "keep": "1 attends, 0 ignores",
    "drop": "1 ignores, 0 attends",
    "bias": "added to the scaled and capped scores; -inf ignores",
    "lengths": "keys from this position on are ignored",
}
_AXES: Final = {
    "query": ["batch", "head", "query", "channel"],
    "key": ["batch", "kv_head", "key", "channel"],
    "value": ["batch", "kv_head", "key", "value_channel"],
    "mask": ["batch", "head", "query", "key"],
}
_ANSWER: Final = ["batch", "head", "query", "value_channel"]
Tell = Callable[[str, int, int], None]


def write_vectors(
    folder: Path, dtypes: Sequence[str], tell: Tell = lambda _step, _done, _total: None
) -> int:
    """Write the vectors of some dtypes to a new or empty folder; how many cases there are.

    The same version writes the same bytes on the same machine. Raises UsageError for a folder that
    cannot be written.
    """
    with staged(folder) as making:
        (making / CASES).mkdir()
        entries = []
        with one_thread(), torch_state.neutral():
            for number, dtype in enumerate(dtypes):
                tell(f"golden answers in {dtype}", number, len(dtypes))
                entries += list(_cases(making, dtype))
        for name in (*SCHEMAS, README):
            text = resources.files(__package__).joinpath(name).read_text("utf-8")
            (making / name).write_text(text, encoding="utf-8")
        _write_json(making / INDEX, _index(entries, dtypes))
    return len(entries)


def _cases(folder: Path, dtype: str) -> Iterator[dict[str, Any]]:
    """Write every case of a dtype, and yield its entries of the index."""
    counted: dict[str, int] = {}
    for case in vector_cases(dtype):
        kind = f"{dtype}-{case.clause.id}"
        if case.alignment != "bottom-right":
            kind += f"-{case.alignment}"
        counted[kind] = counted.get(kind, 0) + 1
        name = f"{kind}-{counted[kind]:02}"
        places, data = _packed(case)
        (folder / CASES / f"{name}.bin").write_bytes(data)
        described = _described(name, case, places, data)
        text = _write_json(folder / CASES / f"{name}.json", described)
        yield {
            "id": name,
            "clause": case.clause.id,
            "dtype": dtype,
            "file": f"{CASES}/{name}.json",
            "sha256": hashlib.sha256(text).hexdigest(),
        }


def _packed(case: VectorCase) -> tuple[dict[str, Any], bytes]:
    """Where each tensor lies in the file, and the file."""
    places: dict[str, Any] = {}
    data = bytearray()
    for name, tensor in case.tensors.items():
        data.extend(bytes(-len(data) % ALIGNED))
        places[name] = {
            "dtype": tensor.dtype,
            "stored": STORED_AS[tensor.dtype],
            "shape": list(tensor.shape),
            "axes": _AXES.get(name, _ANSWER),
            "offset": len(data),
            "bytes": len(tensor.data),
        }
        data.extend(tensor.data)
    return places, bytes(data)


def _described(name: str, case: VectorCase, places: dict[str, Any], data: bytes) -> dict[str, Any]:
    """The description of a case: all that decides what attention computes."""
    inputs, sizes = case.inputs, case.inputs.geometry
    form = inputs.mask_form
    length, keys = inputs.query.shape[-2], inputs.key.shape[-2]
    return {
        "format": FORMAT,
        "id": name,
        "clause": case.clause.id,
        "requirement": case.clause.sentence,
        "dtype": case.dtype,
        "sizes": {
            "batch": inputs.query.shape[0],
            "heads": sizes.num_heads,
            "kv_heads": sizes.num_kv_heads,
            "queries": length,
            "keys": keys,
            "head_size": inputs.query.shape[-1],
            "value_head_size": inputs.value.shape[-1],
        },
        "scale": case.golden.core.scale,
        "scale_is_default": inputs.scale is None,
        "softcap": inputs.softcap,
        "causal": inputs.causal,
        "window": None if inputs.window is None else list(inputs.window),
        "alignment": case.alignment,
        "diagonal": keys - length if case.alignment == "bottom-right" else 0,
        "mask": None if form is None else {"form": form, "meaning": MEANINGS[form]},
        "empty_rows": EMPTY_ROWS,
        "tensors": places,
        "data": {
            "file": f"{name}.bin",
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
        },
    }


def _index(entries: list[dict[str, Any]], dtypes: Sequence[str]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "kind": "attention test vectors",
        "generator": {"name": TOOL, "version": package_version(TOOL)},
        "specification": specification_hash(),
        "byte_order": "little",
        "dtypes": list(dtypes),
        "tolerances": {dtype: _tolerance(dtype) for dtype in dtypes},
        "cases": entries,
    }


def _tolerance(dtype: str) -> str:
    """What the bounds allow, in words."""
    return " ".join(describe(contract_for(promising("bottom-right").declaration, dtype, ANY_SCALE)))


def _write_json(path: Path, data: dict[str, Any]) -> bytes:
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    path.write_bytes(text.encode("utf-8"))
    return text.encode("utf-8")
