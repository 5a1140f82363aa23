"""out.*: an answer that is written into a tensor the caller brings along."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..calls.calling import Answer, CandidateFailure, arguments
from ..calls.devices import placed, taken, whole_storage
from ..problems.arrangements import presented_shape
from ..problems.inputs import Inputs
from ..problems.memory_layouts import MEMORY_LAYOUTS
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import Space
from .judging import identical, same_unless_identical
from .registry import Finding, clause, declares, violated
from .subject import Subject

SOURCE = "torch's own out= arguments; flash_attn_interface: out="
WRITTEN = Space(mask="maybe", causal="maybe", extras="maybe", values=LIVELY, share=0.5)
# Memory layouts of a buffer that a kernel for contiguous buffers cannot fill.
GAPS = ("every-other", "channels-first", "odd-rows", "tokens-first")


_offers_out = declares("out", "no out= is declared")


@dataclass(frozen=True, eq=False)
class _Written:
    """A call with a buffer: the answer read from the buffer, and the returned object."""

    answer: Answer
    buffer: Tensor
    returned: Any


@clause(
    "out.written",
    sentence=(
        "With out=, every element of the answer is written into that tensor, which is returned "
        "(or nothing is)."
    ),
    source=SOURCE,
    space=WRITTEN,
    applies=(_offers_out,),
    explained=False,
)
def out_written(subject: Subject, problem: Problem) -> Finding:
    """Hand over a buffer of NaN: after the call it holds the answer of a call without a buffer."""
    inputs = subject.inputs(problem)
    plain = subject.answer(inputs)
    written = _call_with_buffer(subject, inputs, "contiguous")
    if written.returned is not None and not _is_same(written.returned, written.buffer):
        return violated("type", "with out= another tensor is returned than the one that was given")
    output = written.answer.output
    left = int((output.isnan() & ~plain.isnan()).sum())
    if left:
        message = f"{left} of {output.numel()} elements of out= are left unwritten, or are NaN"
        return violated("finite", message, got=left, expected=0)
    wording = "with out= the answer is another"
    return same_unless_identical(subject, (inputs, plain), (inputs, output), wording)


@clause(
    "out.bounds",
    sentence="With out=, nothing beside the elements of that tensor is written.",
    source=f"{SOURCE}; memory beside it belongs to others",
    space=WRITTEN,
    applies=(_offers_out,),
    explained=False,
)
def out_bounds(subject: Subject, problem: Problem) -> Finding:
    """A buffer between canaries, which must not change."""
    inputs = subject.inputs(problem)
    written = _call_with_buffer(subject, inputs, "between-canaries")
    return _violation_around(written, inputs, "between-canaries") or Finding()


@clause(
    "out.strided",
    sentence="A tensor that is not contiguous is filled rightly as out=, or refused.",
    source=f"{SOURCE}; pytorch#181133: contiguity assumptions",
    space=WRITTEN,
    applies=(_offers_out,),
    explained=False,
)
def out_strided(subject: Subject, problem: Problem) -> Finding:
    """A buffer with gaps: an equal answer and untouched gaps, or an exception."""
    inputs = subject.inputs(problem)
    layout = GAPS[problem.seed % len(GAPS)]
    plain = subject.answer(inputs)
    try:
        written = _call_with_buffer(subject, inputs, layout)
    except CandidateFailure as failure:
        if failure.violation.kind == "raised":
            return Finding()
        raise
    touched = _violation_around(written, inputs, layout)
    if touched is not None:
        return touched
    wording = f"with an out= that is laid out as {layout} the answer is another"
    pair = (inputs, plain), (inputs, written.answer.output)
    return same_unless_identical(subject, *pair, wording)


@clause(
    "out.kept",
    sentence="A tensor given as out= is not written to by later calls.",
    source=f"{SOURCE}; a buffer that is held and used again",
    space=WRITTEN,
    applies=(_offers_out,),
    explained=False,
)
def out_kept(subject: Subject, problem: Problem) -> Finding:
    """A call with a buffer, then a call with another buffer and a call without."""
    inputs = subject.inputs(problem)
    other = subject.inputs(problem.replace(seed=problem.seed + 1)).replace(weights=inputs.weights)
    written = _call_with_buffer(subject, inputs, "contiguous")
    before = taken(written.buffer)
    _call_with_buffer(subject, other, "contiguous")
    subject.answer(other)
    if identical(taken(written.buffer), before):
        return Finding()
    return violated("mutated", "a later call writes into the out= of an earlier one")


def _call_with_buffer(subject: Subject, inputs: Inputs, layout: str) -> _Written:
    """One call with a buffer of NaN in the given memory layout."""
    buffer = _buffer(inputs, layout)
    positional, keywords = arguments(inputs)
    forward = subject.forward(inputs)
    returned: list[Any] = []

    def writing(*tensors: Any, **named: Any) -> Any:
        returned.append(forward(*tensors, **named))
        return named["out"]

    call_arguments = positional, {**keywords, "out": buffer}
    answer = subject.call_with(writing, call_arguments, inputs)
    # The golden in the candidate's place (see ``control``) answers without being called.
    return _Written(answer=answer, buffer=buffer, returned=returned[-1] if returned else None)


def _buffer(inputs: Inputs, layout: str) -> Tensor:
    """A tensor like the answer, in the axes and on the device of the call, of nothing but NaN."""
    shape = presented_shape(inputs)
    nothing = torch.full(shape if inputs.batched else shape[1:], math.nan, dtype=inputs.query.dtype)
    if layout == "tokens-first" and nothing.dim() < len("BLE"):
        layout = "channels-first"
    (buffer,), _ = placed(((MEMORY_LAYOUTS[layout](nothing),), {}), inputs.device)
    return buffer


def _is_same(returned: Any, buffer: Tensor) -> bool:
    if not isinstance(returned, Tensor) or returned.dtype != buffer.dtype:
        return False
    return returned.data_ptr() == buffer.data_ptr() and returned.shape == buffer.shape


def _violation_around(written: _Written, inputs: Inputs, layout: str) -> Finding | None:
    """A violation where the memory around or between the elements changed; None where not."""
    fresh = _buffer(inputs, layout)
    fresh.copy_(written.buffer)
    if identical(taken(whole_storage(written.buffer)), taken(whole_storage(fresh))):
        return None
    message = f"the call wrote into memory outside of its out= ({layout})"
    return violated("mutated", message, got=["out"])
