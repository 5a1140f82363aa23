"""Names the mistake behind wrong gradients: wrong backward passes acted out on a battery."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Final

import torch

from ..base.mistake import NO_MISTAKE
from ..calls.calling import CandidateFailure
from ..calls.differentiating import INPUT_NAMES, NotDifferentiable, Taped
from ..clauses.judging_gradients import described, has_empty_rows
from ..clauses.registry import Clause
from ..clauses.subject import Differentiator, Subject
from ..oracle.gradient_oracle import why_unknown
from ..problems.fitting import fitted_geometry
from ..problems.inputs import Inputs
from ..problems.materialise import TORCH_DTYPES
from ..problems.problem import Problem
from ..tolerance import model
from .battery import answer_to
from .dissection.backward import backward_statements
from .dissection.read_gradients import factor_statements
from .earlier_calls import (
    SECOND_CALL,
    STRIDES_IGNORED,
    ignores_strides,
    keeps_state,
    loaded_anew,
    state_entry,
)
from .entries import named_entry, unnamed_entry
from .mistaken_answer import act
from .mistakes import BACKWARD, NamedMistake, NotExpressible
from .mistakes.backward import EVERY_RULE
from .mistakes.backward_pass import gradients_with
from .mistakes.named_mistake import Gradients
from .observed_gradients import (
    ObservedGradients,
    SquaredErrors,
    battery_gradients,
    further_gradients,
    gradients_at_unseen_sizes,
    near,
    observe_gradients,
    room,
)
from .statement_search import Explanation

MOST_REPORTED: Final = 6
# Rounds of statements, each from more problems.
MOST_TIMES: Final = 2
PRECISE: Final = ("float32", "float64")
# The formats that gradients may be rounded to.
FORMATS: Final = (torch.bfloat16, torch.float16)
# Clauses whose problems may lack the option that makes gradients wrong.
WHOLE: Final = ("gradients.golden", "gradients.options")
# The clause whose gradients are of two calls.
TWO_CALLS: Final = "gradients.accumulate"


_OF_ANSWER: Final[dict[str, Any]] = unnamed_entry(
    f"{NO_MISTAKE}: the answer to this call is wrong as well, before any gradient is taken"
)


class BackwardDiagnostician:
    """Explains wrong gradients of one candidate in one dtype; the battery runs once."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject

    def explain(self, clause: str, problem: Problem) -> list[dict[str, Any]]:
        """Return the report's entries that explain the failure of a clause on a problem."""
        candidate = self.subject.candidate
        point = candidate.declaration.semantics
        if not candidate.golden_known or why_unknown(point, candidate.kind):
            return []
        shown = observe_gradients(self.subject, problem)
        if shown is not None and has_empty_rows(self.subject, shown.inputs):
            shown = None  # the failing clause judges rows without keys
        every = [*self.observed, *([] if shown is None else [shown])]
        wrong = [gradients for gradients in every if gradients.wrong]
        if not wrong:
            if blamed := self._blamed_elsewhere(clause, problem):
                return blamed
            explanations = _mistakes_of_clause(clause, problem)
        else:
            explanations = self._explain_gradients(every) or self._read(every)
            rounded = [] if explanations else self._rounded(every)
            if rounded:
                return rounded
            if not explanations and all(each.wrong == ("bias",) for each in wrong):
                explanations = _mistakes_of_clause(clause, problem)
            if not explanations:
                return [_unknown(every, wrong)]
        if any(mistake.right_without for mistake in explanations) and self._answers_wrong(problem):
            return [_OF_ANSWER]  # its gradients say nothing of the backward pass
        confidence = 1 / max(len(explanations), 1)
        return [
            named_entry(m.name, m.sentence, m.fix, confidence) for m in explanations[:MOST_REPORTED]
        ]

    def _blamed_elsewhere(self, clause: str, problem: Problem) -> list[dict[str, Any]]:
        if keeps_state(self.subject, problem):
            return [SECOND_CALL]
        if clause == TWO_CALLS and (entry := state_entry(self.subject)):
            return [entry]
        if clause == "gradients.strided" and ignores_strides(self.subject):
            return [STRIDES_IGNORED]  # in the forward pass already
        return []

    def _answers_wrong(self, problem: Problem) -> bool:
        answer = answer_to(self.subject, self.subject.inputs(problem))
        return answer is None or answer.margin > 1.0

    def _explain_gradients(self, every: Sequence[ObservedGradients]) -> list[NamedMistake]:
        ordered, declared = sorted(every, key=_dearness), self.subject.declaration
        made = {m.name: m for m in BACKWARD if _explains(m, ordered)}
        rules = (declared.masks, declared.causal, "window" in declared.features)
        if len(made) > 1 and sum(map(bool, rules)) == 1:
            made.pop(EVERY_RULE, None)
        return list(made.values())

    def _read(self, every: Sequence[ObservedGradients]) -> list[NamedMistake]:
        """Return the simplest statement that explains every gradient, also of further problems.

        If further problems refute all statements, new statements are made from these as well.
        """
        observed = list(every)
        # In half precision many statements hold at first, and more problems tell little apart.
        times = MOST_TIMES if self.subject.dtype in PRECISE else 1
        if sum(bool(each.wrong) for each in every) == 1:  # which much fits
            observed += further_gradients(self.subject, every, time=times + 1)
        for time in range(1, times + 1):
            proposed = (one for one in _proposals(observed) if _explains(one, observed))
            further: list[ObservedGradients] = []
            beyond: list[ObservedGradients] = []
            for statement in proposed:
                further = further or further_gradients(self.subject, every, time=time)
                if not _confirms(statement, observed, further):
                    continue
                at_sizes = gradients_at_unseen_sizes(self.subject, statement, [*observed, *further])
                if _confirms(statement, observed, [*further, *at_sizes]):
                    return [statement]
                beyond += at_sizes
            if not further:
                break
            observed += [*further, *beyond]
        return []

    def _rounded(self, every: Sequence[ObservedGradients]) -> list[dict[str, Any]]:
        """Return the entry for wrong gradients that are right gradients rounded to a format."""
        names = {name: None for each in every for name in each.wrong}
        own = torch.finfo(TORCH_DTYPES[self.subject.dtype]).eps
        for dtype in FORMATS:
            if torch.finfo(dtype).eps <= own:  # as every number of the candidate's own dtype is
                continue
            if not all(_is_rounded(each, names, dtype) for each in every):
                continue
            further = further_gradients(self.subject, every)
            seen = {name for each in further for name in each.wrong}
            if seen == names.keys() and all(_is_rounded(each, names, dtype) for each in further):
                listed = ", ".join(described(name) for name in names)
                words = f"rounded to {str(dtype).removeprefix('torch.')}"
                return [
                    named_entry(
                        f"gradients of {', '.join(names)}: {words}",
                        f"the gradients of {listed} are {words}",
                        "compute and return gradients in the precision of the inputs",
                    )
                ]
        return []

    @cached_property
    def observed(self) -> list[ObservedGradients]:
        """The gradients on the battery."""
        return battery_gradients(self.subject)


def _proposals(observed: Sequence[ObservedGradients]) -> Iterator[NamedMistake]:
    with suppress(NotExpressible):
        yield from factor_statements(observed)
    yield from backward_statements(observed, soon=True)
    yield from backward_statements(observed)


def _confirms(
    statement: NamedMistake,
    observed: Sequence[ObservedGradients],
    further: Sequence[ObservedGradients],
) -> bool:
    names = {name for each in observed for name in each.wrong}
    seen = {name for each in further for name in each.wrong}
    return names == seen and _explains(statement, further)


def _dearness(observed: ObservedGradients) -> tuple[bool, bool, int]:
    """Order gradients: wrong ones of few pairs first, since they refute most mistakes.

    Sizes that all differ tell more.
    """
    sizes = observed.inputs.geometry
    lengths = (sizes.query_length, sizes.key_length, sizes.head_size)
    alike = 1 in lengths or len(set(lengths)) < len(lengths)
    return not observed.wrong, alike, sizes.logits


def _is_rounded(observed: ObservedGradients, names: Collection[str], dtype: torch.dtype) -> bool:
    for name in names:
        if name not in observed.actual.by_name:
            continue
        actual, exact = observed.actual.by_name[name], observed.expected.gradients[name]
        half = torch.finfo(dtype).eps / 2.0
        allowed = exact.worst + half * (exact.value.abs() + exact.worst)
        stays = torch.equal(actual.to(dtype).to(actual.dtype), actual)
        if not (stays and near(actual, exact.value, allowed)):
            return False
    return True


def _mistakes_of_clause(clause: str, problem: Problem) -> list[NamedMistake]:
    unstepped = [mistake for mistake in BACKWARD if not mistake.backward]
    options = [mistake for mistake in unstepped if mistake.right_without]
    for mistake in unstepped:
        if mistake not in options and mistake.primary == clause:
            return [mistake]
    if clause not in WHOLE and not any(clause in mistake.also for mistake in options):
        return []
    present = [m for m in options if getattr(problem, m.right_without) or clause in m.also]
    return present if len(present) == 1 else []


def _explains(mistake: NamedMistake, every: Sequence[ObservedGradients]) -> bool:
    edits = mistake.backward
    return bool(edits) and explain_gradients(
        every, lambda one: gradients_with(one.passes, one.inputs, edits)
    )


def explain_gradients(
    every: Sequence[ObservedGradients], acting: Callable[[ObservedGradients], Gradients]
) -> bool:
    """Whether acted gradients match the observed ones and leave little of their errors.

    Right gradients must not be farther from the acted ones than from the exact ones.

    A mistake of the inputs' gradients may leave the gradient of an additive mask right.
    """
    errors: dict[str, SquaredErrors] = {}
    spared: dict[str, SquaredErrors] = {}
    mask_is_right = not any("bias" in observed.wrong for observed in every)
    for observed in every:
        try:
            acted = acting(observed)
        except NotExpressible:
            return False
        actual = observed.actual.by_name
        for name, exact in observed.expected.gradients.items():
            if name not in actual:
                continue
            if name not in acted or (name == "bias" and mask_is_right):
                if name in observed.wrong:
                    return False
                continue
            allowed = room(acted[name], exact.value, exact.worst)
            if not near(actual[name], acted[name], allowed):
                return False
            of_kind = errors if name in observed.wrong else spared
            of_kind.setdefault(name, SquaredErrors()).add(actual[name], exact.value, acted[name])
    explained = all(each.explained for each in errors.values())
    return bool(errors) and explained and not any(each.worsened for each in spared.values())


def _unknown(
    every: Sequence[ObservedGradients], wrong: Sequence[ObservedGradients]
) -> dict[str, Any]:
    names = list(dict.fromkeys(name for each in wrong for name in each.wrong))
    facts: dict[str, Any] = {"asked": len(every), "wrong": len(wrong), "gradients": names}
    text = f"the gradients of {', '.join(names)} go wrong in {len(wrong)} of {len(every)} problems"
    if not all(
        bool(each.actual.by_name[name].isfinite().all()) for each in wrong for name in each.wrong
    ):
        facts["finite"] = False
        text += "; not all of them are finite"
    factor = _common_factor(wrong)
    if factor is not None:
        facts["ratio"] = factor
        text += f"; they are {factor:.6g} times what is expected"
    return unnamed_entry(f"{NO_MISTAKE}: {text}", facts)


def _common_factor(wrong: Sequence[ObservedGradients]) -> float | None:
    factors = [_factor(each) for each in wrong]
    numbers = [factor for factor in factors if factor is not None]
    if len(numbers) < len(factors) or max(numbers) - min(numbers) > model.NEARLY_NOTHING**0.5:
        return None
    return numbers[0]


def _factor(observed: ObservedGradients) -> float | None:
    gradients = observed.expected.gradients
    actual = torch.cat(
        [observed.actual.by_name[name].double().flatten() for name in observed.wrong]
    )
    expected = torch.cat([gradients[name].value.flatten() for name in observed.wrong])
    size = float(expected.square().sum())
    if not size or not bool(actual.isfinite().all()):
        return None
    factor = float((actual * expected).sum()) / size
    left = float((actual - factor * expected).square().sum())
    total = float((actual - expected).square().sum())
    return factor if left <= model.NEARLY_NOTHING * total else None


# Equal numbers of queries and keys, more than one, so that every input has an influence.
_SEVERAL: Final = 3


class _NotingDifferentiator(Differentiator):
    lost: tuple[Inputs, tuple[str, ...]] | None = None
    _taped: Inputs | None = None

    def tape(self, inputs: Inputs, **options: Any) -> Taped:
        self._taped = inputs
        return super().tape(inputs, **options)

    def _without_history(self, names: tuple[str, ...] | None, *, bias: bool) -> None:
        if self._taped is not None:
            self.lost = self._taped, names or ()
        super()._without_history(names, bias=bias)


def loses_history(
    explanations: Sequence[Explanation], subject: Subject, clause: Clause, problem: Problem
) -> str:
    """Return the name of mistakes that remove all influence of inputs without gradient, or "".

    Asked on a problem with as many queries as keys, where right answers depend on each input.
    """
    wanted = problem.geometry.replace(query_length=_SEVERAL, key_length=_SEVERAL)
    sizes = fitted_geometry(wanted, subject.candidate, clause.space)
    larger = problem.replace(geometry=sizes, values="normal", overrides=None)
    asked = subject.like()
    asked.gradients = noting = _NotingDifferentiator(asked)
    with suppress(CandidateFailure, NotDifferentiable):
        clause.check(asked, larger)
    if noting.lost is None or noting.lost[0].mode != "separate":
        return ""
    inputs, names = noting.lost
    roles = [INPUT_NAMES["separate"][int(name.removeprefix("input "))] for name in names]
    changed = inputs.with_tokens(**{role: getattr(inputs, role).flip(-2) + 1.0 for role in roles})
    right = [asked.oracle.output(one) for one in (inputs, changed)]
    if not roles or torch.equal(*right):
        return ""
    point = subject.declaration.semantics
    for one in explanations:
        with suppress(NotExpressible):
            ways = (act(asked.oracle, point, one.made, each).output for each in (inputs, changed))
            if one.made and torch.equal(*ways):
                return str(one.entry["name"])
    return ""


def passes_anew(subject: Subject, clause: Clause, problem: Problem) -> bool:
    """Whether a clause passes if a fresh copy of the candidate answers each call.

    False if no copy can be made, except of layers, which are built anew for each call.
    """
    candidate = subject.candidate
    lacking: list[str] = []

    def fresh() -> Callable[..., Any]:
        copy = loaded_anew(candidate)
        if copy is None and candidate.kind != "layer":
            lacking.append(candidate.name)
        return (copy or candidate).function

    def built(*given: Any, **options: Any) -> Callable[..., Any]:
        def forward(*positional: Any, **keywords: Any) -> Any:
            return fresh()(*given, **options)(*positional, **keywords)

        return forward

    def core(*positional: Any, **keywords: Any) -> Any:
        return fresh()(*positional, **keywords)

    function = built if candidate.kind == "layer" else core
    asked = subject.like(dataclasses.replace(candidate, function=function))
    try:
        return clause.check(asked, problem).violation is None and not lacking
    except (CandidateFailure, NotDifferentiable):
        return False
