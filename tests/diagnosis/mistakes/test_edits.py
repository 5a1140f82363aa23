"""The catalogue as edits of stages: of names that there are, and of calls that can be asked."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from examples import core, layer

from conformance._golden import golden
from conformance.clauses.subject import Subject
from conformance.declare.candidate import Candidate
from conformance.diagnosis.battery import battery
from conformance.diagnosis.mistaken_answer import act, mistaken_call
from conformance.diagnosis.mistakes import MISTAKES, DeclaredCall, NotExpressible, touches
from conformance.diagnosis.mistakes.named_mistake import (
    IMPOSSIBLE,
    is_of_call,
    run_of_call,
)
from conformance.oracle.oracle import evaluate

SOME = 23


def read(edit: golden.Edit) -> Iterator[str]:
    """The names of the results that an edit reads."""
    yield from golden.reads(edit.when)
    if edit.rule is not None:
        yield from golden.reads(edit.rule)
    if edit.change is not None:
        yield from golden.reads_besides(edit.change)


def calls(candidate: Candidate) -> Iterator[tuple[Subject, DeclaredCall]]:
    """Some problems of the battery of a candidate."""
    subject = Subject(candidate, "float32")
    for inputs in list(battery(subject))[::SOME]:
        yield subject, DeclaredCall(inputs=inputs, semantics=subject.declaration.semantics)


def test_edits_are_of_stages_and_read_results() -> None:
    """Each edit is of a stage or of what a call gives, and reads nothing else."""
    known = set(golden.LAYER.steps)
    for candidate in (core(), layer()):
        known.update(run_of_call(next(calls(candidate))[1]).given)
    for mistake in MISTAKES:
        for edit in mistake.edits:
            assert {edit.stage, *read(edit)} <= known, (mistake.name, edit.stage)


def test_an_edit_of_a_call_is_another_call() -> None:
    """Asked otherwise, the golden answers as the edited run does, within its last digits."""
    made = [one for one in MISTAKES if one.edits and all(map(is_of_call, one.edits))]
    assert len({one.name for one in made}) > 100
    for subject, call in (pair for one in (core(), layer()) for pair in calls(one)):
        for mistake in made:
            if not touches(mistake, call):
                continue
            try:
                acted = act(subject.oracle, call.semantics, [mistake], call.inputs)
                other = mistaken_call(call.semantics, (mistake,), call.inputs)
            except (NotExpressible, *IMPOSSIBLE):
                continue
            expected = evaluate(other.inputs, other.semantics).output
            assert not acted.stepwise
            torch.testing.assert_close(acted.output, expected, equal_nan=True, msg=mistake.name)
