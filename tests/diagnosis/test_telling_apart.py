"""The fewest conditions are named under which a mistake is made."""

from __future__ import annotations

from examples import core, problem

from conformance.clauses.subject import Subject
from conformance.diagnosis.telling_apart import telling_apart


def test_the_fewest_conditions_tell_inputs_apart() -> None:
    """One condition where one is enough; none where nothing is spared; None where none fit."""
    subject = Subject(core(), "float32")
    plain = subject.inputs(problem(causal=False))
    causal = subject.inputs(problem(causal=True))
    assert telling_apart([plain], []) == ()
    (only,) = telling_apart([causal], [plain]) or ()
    assert only.name == "causal"
    assert telling_apart([plain], [plain]) is None
