"""What the clauses ask of a core on the fixed edge problems, without any candidate.

The golden stands in for a candidate that promises every option; what it is asked is kept.
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


# The clauses with a golden answer whose questions any implementation of attention can be asked, and
# how many of their edge problems are taken.
ASKED: Final[dict[str, int]] = {
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
# Causal alignment is a convention: each is asked what the causal clauses ask.
ALIGNMENTS: Final[dict[str, tuple[str, ...]]] = {
    "bottom-right": tuple(ASKED),
    "top-left": tuple(slug for slug in ASKED if slug.startswith("mask.causal")),
}
FORMS: Final = ("keep", "drop", "bias", "lengths")
FEATURES: Final = ("scale", "gqa", "softcap", "window")
EMPTY_ROWS: Final = "zeros"
# Vectors are small: what a longer sequence shows is asked with few channels.
MOST_BYTES: Final = 48 * 1024


@dataclass(frozen=True, kw_only=True, eq=False)
class Question:
    """One case: a clause's question in one dtype at one causal alignment, with its answer."""

    clause: Clause
    dtype: str
    alignment: str
    inputs: Inputs
    known: Golden
    tensors: dict[str, Stored]


def questions(dtype: str) -> Iterator[Question]:
    """Every question in a dtype, each once, in a fixed order."""
    known = {clause.id: clause for clause in all_clauses()}
    seen: set[str] = set()
    for alignment, slugs in ALIGNMENTS.items():
        subject = _Listening(Subject(promising(alignment), dtype))
        for slug in slugs:
            for inputs in subject.asked_by(known[slug], ASKED[slug]):
                asked = _question(subject, known[slug], alignment, inputs)
                digest = _digest(asked)
                if digest not in seen and _is_small(asked) and _shows_something(asked):
                    seen.add(digest)
                    yield asked


def promising(alignment: str) -> Candidate:
    """A core that promises everything the vectors ask; it is never called."""
    made: Candidate = core(
        name="vectors",
        masks=list(FORMS),
        causal=alignment,
        empty_rows=EMPTY_ROWS,
        features=list(FEATURES),
        without=["gradients"],
    )(_never)
    return made


def _never(*_inputs: Tensor, **_keywords: Any) -> Tensor:
    msg = "the golden stands in its place"
    raise LookupError(msg)


class _Listening(Control):
    """The golden in a candidate's place, which keeps what it is asked."""

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self.heard: list[Inputs] = []

    def ask(self, forward: Forward, given: Arguments, inputs: Inputs) -> Answer:
        """The golden answer."""
        self.heard.append(inputs)
        return super().ask(forward, given, inputs)

    def asked_by(self, clause: Clause, most: int) -> list[Inputs]:
        """What a clause asks on its first edge problems."""
        self.heard = []
        for problem in edge_problems(self.candidate, clause.space, dtype=self.dtype, most=most):
            try:
                clause.check(self, problem)
            except CandidateFailure:  # where the golden itself refuses, nothing was asked
                self.heard = self.heard[:-1]
        return [inputs for inputs in self.heard if not inputs.return_weights]


def _question(subject: Subject, clause: Clause, alignment: str, inputs: Inputs) -> Question:
    known = subject.golden(inputs)
    shape = known.output.shape
    tensors = {"query": inputs.query, "key": inputs.key, "value": inputs.value}
    if inputs.mask_form is not None:
        tensors["mask"] = _four_axes(present_mask(inputs))
    answer = {
        "expected": known.output,
        "bound": known.bound.expand(shape),
        "judged": known.judged.expand(shape),
        "empty": known.empty_rows.expand(shape) & known.representable.expand(shape),
    }
    every = {**tensors, **answer}
    return Question(
        clause=clause,
        dtype=subject.dtype,
        alignment=alignment,
        inputs=inputs,
        known=known,
        tensors={name: stored(tensor) for name, tensor in every.items()},
    )


def _four_axes(mask: Tensor) -> Tensor:
    """A mask as [B, H, Lq, Lk] with 1 where it does not vary; lengths as [B, 1, 1, 1]."""
    return mask if mask.dim() == len("BHQK") else mask.reshape(-1, 1, 1, 1)


def _digest(asked: Question) -> str:
    """What tells one question from another."""
    told = asked.inputs
    words = (
        asked.alignment if told.causal or told.window is not None else "",
        told.causal,
        told.scale,
        told.softcap,
        told.window,
        told.mask_form,
    )
    digest = hashlib.sha256(repr(words).encode())
    for name, tensor in asked.tensors.items():
        digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode())
        digest.update(tensor.data)
    return digest.hexdigest()


def _is_small(asked: Question) -> bool:
    return sum(len(tensor.data) for tensor in asked.tensors.values()) <= MOST_BYTES


def _shows_something(asked: Question) -> bool:
    """Whether some element of the answer counts, and all that count are finite."""
    shape = asked.known.output.shape
    counted = asked.known.judged.expand(shape)
    finite = torch.isfinite(asked.known.output) & torch.isfinite(asked.known.bound.expand(shape))
    return bool(counted.any() | asked.known.empty_rows.any()) and bool((finite | ~counted).all())
