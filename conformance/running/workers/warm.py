"""What a warm process has imported, drawn and computed before it is forked for a candidate."""

from __future__ import annotations

import ast
import contextlib
import os
from collections.abc import Mapping
from typing import Any, Final

# The first gradient would import it, and with it a second's worth of symbolic algebra.
from torch.fx.experimental import symbolic_shapes

from ...base.limits import uncollected

with uncollected():
    from ...base.profile import PROFILES
    from ...calls import torch_state
    from ...calls.calling import Forward
    from ...calls.integrity import seal
    from ...clauses.subject import Subject
    from ...declare.decorators import core
    from ...diagnosis import Diagnostician
    from ...diagnosis.mistaken_answer import DiagnosedSubject, act, like_nobody
    from ...diagnosis.mistakes import NamedMistake, named_mistakes
    from ...errors import DeclarationError
    from ...problems.inputs import Inputs
    from ...problems.strategies import FEW_DRAFTS, first_drafts
    from ..runner import one_thread
    from .planning import plan_targets
    from .pool import PROMISED
    from .worker import ready

    QUICK = PROFILES["quick"]
    DRAWN = [
        first_drafts(longest=QUICK.longest, count=count, seed_value=0)
        for count in (FEW_DRAFTS, QUICK.examples)
    ]
    WARMED = (plan_targets, named_mistakes(), ready(), seal(), symbolic_shapes)

# The mistake that is diagnosed in advance: every core can make it.
COMMONEST: Final = "scale-missing"
# What may go wrong where promises are strange.
_CANNOT_PREPARE: Final = (DeclarationError, LookupError, RuntimeError, TypeError, ValueError)


class _Mistaken(DiagnosedSubject):
    """A subject that answers as a candidate with one mistake, which is acted out."""

    def __init__(self, subject: Subject, mistake: NamedMistake) -> None:
        super().__init__(subject)
        self._mistake = mistake

    def forward(self, inputs: Inputs) -> Forward:
        """What answers some inputs, whatever it is called with."""

        def answer(*_arguments: object, **_keywords: object) -> Any:
            acted = act(self.oracle, self.declaration.semantics, (self._mistake,), inputs)
            return acted.output.to(inputs.query.dtype)

        return answer


def diagnose_in_advance(promises: Mapping[str, Any]) -> list[str]:
    """The names of a mistake that a core with some promises could make.

    What was computed for it follows from the promises alone, such as golden answers, their bounds
    and what other mistakes answer. It is there for the diagnosis of the next candidate that makes
    the same promises.
    """
    candidate = core(**promises)(like_nobody)
    subject = Subject(candidate, candidate.declaration.dtypes[0])
    mistake = next(one for one in named_mistakes() if one.name == COMMONEST)
    with one_thread(), torch_state.neutral():  # threads of torch would not outlive a fork
        entries = Diagnostician(_Mistaken(subject, mistake), named_mistakes()).explain()
    return [str(entry["name"]) for entry in entries]


if PROMISED in os.environ:
    # The first candidate that makes promises which nobody can make is refused, with the reason.
    # Whatever else goes wrong here, that candidate is judged without what was computed for it.
    with uncollected(), contextlib.suppress(*_CANNOT_PREPARE):
        diagnose_in_advance(ast.literal_eval(os.environ[PROMISED]))
