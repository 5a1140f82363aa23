"""Writes test vectors: an index, and for every case a description and a file of bytes.

A case is a call that a clause makes on the fixed edge problems. The golden stands in for a
candidate that promises every option, and records the calls.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from ...base.files import staged
from ...base.record import TOOL
from ...calls import torch_state
from ...calls.calling import Answer, Arguments, CandidateFailure, Forward, present_mask
from ...clauses.registry import Clause, all_clauses, specification_hash
from ...clauses.subject import Subject
from ...declare.candidate import Candidate
from ...declare.decorators import core
from ...oracle.oracle import Golden
from ...problems.edges import edge_problems
from ...problems.inputs import Inputs
from ...running.shrinking.smallest import Control
from ...running.workers.messages import package_version
from ...running.workers.planning import ANY_SCALE
from ...tolerance import contract_for
from ...tolerance.contract import describe
from . import ALIGNED, CASES, FORMAT, INDEX, README, SCHEMAS

# What the elements of each dtype are in the file.
STORED_AS: Final = {
    "float64": "float64",
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "uint16",
    "int64": "int64",
    "bool": "uint8",
}


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A tensor's dtype, shape and bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def stored(tensor: Tensor) -> Stored:
    """The bytes of a tensor; of bfloat16 its 16 bits, of bool a byte an element, 0 or 1."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    plain = tensor.detach().contiguous()
    if plain.dtype == torch.bfloat16:
        plain = plain.view(torch.int16)
    array = plain.numpy()
    if sys.byteorder != "little":
        array = array.byteswap()
    return Stored(dtype=dtype, shape=tuple(tensor.shape), data=array.tobytes())


# The clauses with a golden answer whose calls any implementation of attention takes, and how many
# of their edge problems are used.
PROBLEMS: Final[dict[str, int]] = {
    "numerics.golden": 34,
    "numerics.scale": 8,
    "numerics.large-logits": 8,
    "numerics.near-ties": 4,
    "numerics.subnormal": 4,
    "numerics.options": 64,
    "numerics.any-length": 8,
    "mask.golden": 24,
    "mask.bias": 8,
    "mask.single-key": 8,
    "mask.empty-row": 10,
    "mask.causal-alignment": 12,
    "mask.causal-combined": 12,
    "mask.causal-first-key": 6,
    "groups.golden": 10,
    "window.golden": 8,
    "softcap.golden": 8,
}
# Causal alignment is a convention: the causal clauses make calls under each.
ALIGNMENTS: Final[dict[str, tuple[str, ...]]] = {
    "bottom-right": tuple(PROBLEMS),
    "top-left": tuple(slug for slug in PROBLEMS if slug.startswith("mask.causal")),
}
FORMS: Final = ("keep", "drop", "bias", "lengths")
FEATURES: Final = ("scale", "gqa", "softcap", "window")
EMPTY_ROWS: Final = "zeros"
# Vectors are small: a longer sequence has few channels.
MOST_BYTES: Final = 48 * 1024


@dataclass(frozen=True, kw_only=True, eq=False)
class VectorCase:
    """A clause's call in one dtype at one causal alignment, with its golden answer."""

    clause: Clause
    dtype: str
    alignment: str
    inputs: Inputs
    golden: Golden
    tensors: dict[str, Stored]

    def digest(self) -> str:
        """A digest of the facts that distinguish cases."""
        inputs = self.inputs
        words = (
            self.alignment if inputs.causal or inputs.window is not None else "",
            inputs.causal,
            inputs.scale,
            inputs.softcap,
            inputs.window,
            inputs.mask_form,
        )
        digest = hashlib.sha256(repr(words).encode())
        for name, tensor in self.tensors.items():
            digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode())
            digest.update(tensor.data)
        return digest.hexdigest()

    def is_small(self) -> bool:
        """Whether all tensors together fit a file."""
        return sum(len(tensor.data) for tensor in self.tensors.values()) <= MOST_BYTES

    def shows_something(self) -> bool:
        """Whether elements are judged or rows are empty, and all judged elements are finite."""
        answer = self.golden
        shape = answer.output.shape
        counted = answer.judged.expand(shape)
        finite = torch.isfinite(answer.output) & torch.isfinite(answer.bound.expand(shape))
        return bool(counted.any() | answer.empty_rows.any()) and bool((finite | ~counted).all())


def vector_cases(dtype: str) -> Iterator[VectorCase]:
    """Every case of a dtype, each once, in a fixed order."""
    clauses = {clause.id: clause for clause in all_clauses()}
    digests: set[str] = set()
    for alignment, slugs in ALIGNMENTS.items():
        recorder = _CallRecorder(Subject(promising(alignment), dtype))
        for slug in slugs:
            for inputs in recorder.calls_of(clauses[slug], PROBLEMS[slug]):
                case = _case(recorder, clauses[slug], alignment, inputs)
                digest = case.digest()
                if digest not in digests and case.is_small() and case.shows_something():
                    digests.add(digest)
                    yield case


def promising(alignment: str) -> Candidate:
    """A core that promises every option of the vectors; it is never called."""
    candidate: Candidate = core(
        name="vectors",
        masks=list(FORMS),
        causal=alignment,
        empty_rows=EMPTY_ROWS,
        features=list(FEATURES),
        without=["gradients"],
    )(_never)
    return candidate


def _never(*_inputs: Tensor, **_keywords: Any) -> Tensor:
    msg = "the golden stands in its place"
    raise LookupError(msg)


class _CallRecorder(Control):
    """The golden in a candidate's place, with a record of its calls."""

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self.calls: list[Inputs] = []

    def call_with(self, forward: Forward, call_arguments: Arguments, inputs: Inputs) -> Answer:
        """The golden answer."""
        self.calls.append(inputs)
        return super().call_with(forward, call_arguments, inputs)

    def calls_of(self, clause: Clause, most: int) -> list[Inputs]:
        """The calls of a clause on its first edge problems."""
        self.calls = []
        for problem in edge_problems(self.candidate, clause.space, dtype=self.dtype, most=most):
            try:
                clause.check(self, clause.problem_for(self, problem))
            except CandidateFailure:  # the golden itself refuses the last call
                del self.calls[-1:]
        return [inputs for inputs in self.calls if not inputs.return_weights]


def _case(subject: Subject, clause: Clause, alignment: str, inputs: Inputs) -> VectorCase:
    answer = subject.golden(inputs)
    shape = answer.output.shape
    tensors = {"query": inputs.query, "key": inputs.key, "value": inputs.value}
    if inputs.mask_form is not None:
        tensors["mask"] = _four_axes(present_mask(inputs))
    tensors |= {
        "expected": answer.output,
        "bound": answer.bound.expand(shape),
        "judged": answer.judged.expand(shape),
        "empty": answer.empty_rows.expand(shape) & answer.representable.expand(shape),
    }
    return VectorCase(
        clause=clause,
        dtype=subject.dtype,
        alignment=alignment,
        inputs=inputs,
        golden=answer,
        tensors={name: stored(tensor) for name, tensor in tensors.items()},
    )


def _four_axes(mask: Tensor) -> Tensor:
    """A mask as [B, H, Lq, Lk] with 1 where it does not vary; lengths as [B, 1, 1, 1]."""
    return mask if mask.dim() == len("BHQK") else mask.reshape(-1, 1, 1, 1)


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
    """Write the vectors of some dtypes to a new or empty folder, and return the number of cases.

    Equal versions write equal bytes on a machine. Raises UsageError for a folder that cannot be
    written.
    """
    with staged(folder) as making:
        (making / CASES).mkdir()
        entries = []
        with torch_state.one_thread(), torch_state.neutral():
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
    """The places of the tensors in the file, and the file's bytes."""
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
    """The description of a case: all inputs and choices that decide its answer."""
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
    return " ".join(describe(contract_for(promising("bottom-right").declaration, dtype, ANY_SCALE)))


def _write_json(path: Path, data: dict[str, Any]) -> bytes:
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    path.write_bytes(text.encode("utf-8"))
    return text.encode("utf-8")
