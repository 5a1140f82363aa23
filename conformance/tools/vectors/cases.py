"""The calls that clauses make on the fixed edge problems, without any candidate.

The golden stands in for a candidate that promises every option, and records its calls.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from ...calls.calling import Answer, Arguments, CandidateFailure, Forward, present_mask
from ...clauses.registry import Clause, all_clauses
from ...clauses.subject import Subject
from ...declare.candidate import Candidate
from ...declare.decorators import core
from ...oracle.oracle import Golden
from ...problems.edges import edge_problems
from ...problems.inputs import Inputs
from ...shrinking.control import Control

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
    """The bytes of a tensor; of bfloat16 its 16 bits, of bool a byte each, 0 or 1."""
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
    """A call of a clause in one dtype at one causal alignment, with its golden answer."""

    clause: Clause
    dtype: str
    alignment: str
    inputs: Inputs
    golden: Golden
    tensors: dict[str, Stored]

    def digest(self) -> str:
        """A digest of all that distinguishes one case from another."""
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
        """Whether some element of the answer counts, and all that count are finite."""
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
    """The golden in a candidate's place, which records its calls."""

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self.calls: list[Inputs] = []

    def call_with(self, forward: Forward, call_arguments: Arguments, inputs: Inputs) -> Answer:
        """The golden answer."""
        self.calls.append(inputs)
        return super().call_with(forward, call_arguments, inputs)

    def calls_of(self, clause: Clause, most: int) -> list[Inputs]:
        """The calls that a clause makes on its first edge problems."""
        self.calls = []
        for problem in edge_problems(self.candidate, clause.space, dtype=self.dtype, most=most):
            try:
                clause.check(self, problem)
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
