from __future__ import annotations

import pytest
import torch
from examples import core, plan, problem

from conformance.base.results import Violation
from conformance.calls.recording import Recording
from conformance.clauses.subject import Subject
from conformance.oracle.comparison import add_relation
from conformance.problems.materialise import materialise
from conformance.problems.problem import MaskPlan
from conformance.running.shrinking.smallest import Control, NoControlError

COMPARED = Violation(kind="value", message="wrong", compared={"got": {"shape": [1]}})


def recorded_answers(count: int) -> tuple[Recording, list[torch.Tensor]]:
    """A recording of some calls, and their answers."""
    subject, recording = Subject(core(), "float32"), Recording()
    inputs = subject.inputs(problem(batch=1, num_heads=1, num_kv_heads=1, head_size=1))
    with subject.recorded(recording):
        answers = [subject.answer(inputs) for _ in range(count)]
    return recording, answers


def test_order_of_elements_is_read_off_the_view() -> None:
    """A view is told as the elements it shows, in their order; none where it changes nothing."""
    recording, (first, second) = recorded_answers(2)
    violation = add_relation(
        COMPARED,
        recording,
        expected=[(first, lambda answer: answer.flip(-2))],
        got=[(second, lambda answer: answer)],
    )
    assert violation is not None
    relation = violation.compared["relation"]
    (part,) = relation["expected"]
    assert part["call"] == 0
    flipped = first.flip(-2).flatten()
    assert torch.equal(first.flatten()[torch.tensor(part["elements"])], flipped)
    assert relation["got"] == [{"call": 1}]


def test_unrecorded_answers_have_no_relation() -> None:
    """Without a recording, or for an answer that is not in it, nothing is claimed."""
    recording, (answer,) = recorded_answers(1)
    sides = {"expected": [(answer, None)], "got": [(answer.clone(), None)]}
    assert add_relation(COMPARED, recording, **sides) == COMPARED
    assert add_relation(COMPARED, None, **sides) == COMPARED
    assert add_relation(None, recording, **sides) is None


def test_calls_are_kept_as_they_were_made() -> None:
    """Arguments are copies from before the call, in the same layout; answers from right after."""

    def edits(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = core()(query, key, value)
        query.zero_()
        return answer

    subject = Subject(core(edits, masks=[], causal=None, features=[]), "float32")
    inputs = subject.inputs(problem()).replace(layout="tokens-first")
    recording = Recording()
    with subject.recorded(recording):
        subject.answer(inputs)
    (call,) = recording.calls
    assert torch.equal(call.before[0][0], inputs.query)
    assert not bool(call.arguments[0][0].any())
    assert call.before[0][0].stride() == call.arguments[0][0].stride()
    subject.answer(inputs)
    assert len(recording.calls) == 1


@pytest.mark.parametrize("mask", [None, plan()])
def test_control_answers_with_the_golden(mask: MaskPlan | None) -> None:
    """The golden in the candidate's place gives the golden answer in the working dtype."""
    subject = Subject(core(), "float32")
    inputs = subject.inputs(problem(mask=mask))
    answer = Control(subject).answer(inputs)
    assert answer.dtype == torch.float32
    assert torch.equal(answer, subject.golden(inputs).output.float())


def test_control_needs_known_weights() -> None:
    """Where nobody knows the weights there is no golden to stand in."""
    import conformance  # noqa: PLC0415 (one test of many)

    pinned = dict.fromkeys(("query_size", "key_size", "value_size", "output_size"), 2)
    candidate = conformance.fixed_layer(
        lambda query, _key, _value: query, None, num_heads=1, geometry=pinned, name="unknown"
    )
    example = problem(num_heads=1, num_kv_heads=1, **pinned)
    subject = Subject(candidate, "float32")
    assert materialise(example, candidate).weights is None
    with pytest.raises(NoControlError):
        Control(subject).answer(subject.inputs(example))
