"""The job of ``replay`` in the worker: one counterexample of a report, examined again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from ...adapters.graph_forward import described
from ...base.results import Violation, plain
from ...calls import torch_state
from ...calls.calling import CandidateFailure
from ...calls.devices import why_unusable
from ...calls.recording import Recording
from ...clauses.registry import Clause, all_clauses
from ...clauses.subject import Subject
from ...errors import UsageError, did_you_mean
from ...problems.materialise import materialise
from ...problems.memory_layouts import MEMORY_LAYOUTS
from ...problems.problem import Problem, problem_from_json
from ..shrinking.counterexample import describe
from ..shrinking.smallest import Smallest, examine, examine_recorded, same_but_for_numbers
from .planning import CandidatePlan


def replay_job(
    plan: CandidatePlan, argument: dict[str, Any], report_step: Callable[[str, str], None]
) -> dict[str, Any]:
    """Examine a problem again and report its outcome as plain data.

    ``argument`` holds ``clause``, ``dtype``, ``device``, ``problem`` and the ``violation`` of the
    report, ``earlier`` (the clause's examples to run before) and ``after`` (the problem of a first
    call). The result's ``outcome`` is "passes", "fails" or "differs"; the last two come with the
    new ``violation`` and ``counterexample``. Raises UsageError for a clause or problem this version
    cannot run.
    """
    clause, subject, problem = rebuilt(plan, argument)
    with torch_state.one_thread(), torch_state.neutral():
        recording = Recording()
        before = argument.get("earlier", {"last": 0, "of": 0})
        for earlier in _earlier_examples(plan, clause, subject, before["of"], last=before["last"]):
            report_step("calling", plan.candidate.name)  # a new time limit
            examine_recorded(clause, subject, earlier, recording)
        if argument.get("after"):
            with subject.recorded(recording), contextlib.suppress(CandidateFailure):
                subject.answer(subject.inputs(_problem(plan, argument, "after")))
        finding, recording = examine_recorded(clause, subject, problem, recording)
        if finding.violation is None:
            return {"outcome": "passes"}
        shown = describe(clause.id, subject, wrap_unreduced(problem, finding.violation, recording))
    answer: dict[str, Any] = plain(
        {
            "outcome": outcome(argument, finding.violation),
            "violation": vars(finding.violation),
            "counterexample": {**shown, "access": access(plan)},
        }
    )
    return answer


def earlier_job(
    plan: CandidatePlan, argument: dict[str, Any], report_step: Callable[[str, str], None]
) -> None:
    """Run the first ``count`` examples of a clause as the run did; their results are not judged.

    ``argument`` holds ``clause``, ``dtype``, ``device`` and ``count``.
    """
    clause = {clause.id: clause for clause in all_clauses()}.get(argument["clause"])
    if clause is None or why_unusable(plan.candidate, argument["device"]):
        return
    if clause.not_applicable(plan.candidate.on(argument["device"])):
        return
    subject = plan.run.subject(argument["dtype"], argument["device"])
    with torch_state.one_thread(), torch_state.neutral():
        for problem in _earlier_examples(plan, clause, subject, argument["count"]):
            report_step("calling", plan.candidate.name)  # a new time limit
            examine(clause, subject, problem)


def _earlier_examples(
    plan: CandidatePlan, clause: Clause, subject: Subject, count: int, *, last: int | None = None
) -> list[Problem]:
    if not count or last == 0:
        return []
    first = plan.run.pool.problems(clause.space, subject.dtype, subject.device)[:count]
    return first if last is None else first[-last:]


def rebuilt(plan: CandidatePlan, argument: dict[str, Any]) -> tuple[Clause, Subject, Problem]:
    """Rebuild clause, subject and problem of a counterexample; raises UsageError if missing."""
    clauses = {clause.id: clause for clause in all_clauses()}
    slug = argument["clause"]
    if slug not in clauses:
        msg = f"this version has no clause {slug!r}{did_you_mean(slug, clauses)}"
        raise UsageError(msg)
    device = argument["device"]
    absent = why_unusable(plan.candidate, device)
    if absent:
        msg = f"{slug} of {plan.candidate.name} cannot be repeated: {absent}"
        raise UsageError(msg)
    refused = clauses[slug].not_applicable(plan.candidate.on(device))
    if refused:
        msg = f"{slug} does not apply to {plan.candidate.name} any more: {refused}"
        raise UsageError(msg)
    problem = _problem(plan, argument)
    return clauses[slug], plan.run.subject(argument["dtype"], device), problem


def _problem(plan: CandidatePlan, argument: dict[str, Any], name: str = "problem") -> Problem:
    """Read a problem of a report and check its tensors; raises UsageError."""
    slug = argument["clause"]
    try:
        problem = problem_from_json(argument[name])
        _check_layouts(problem)
        materialise(problem, plan.candidate)
    except KeyError as error:
        msg = f"the counterexample of {slug} cannot be rebuilt: this version knows no {error}"
        raise UsageError(msg) from None
    except (TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        msg = f"the counterexample of {slug} cannot be rebuilt: {error}"
        raise UsageError(msg) from None
    return problem


def _check_layouts(problem: Problem) -> None:
    for layout in (problem.layout, problem.mask_layout):
        if layout not in (*MEMORY_LAYOUTS, "mixed"):
            raise KeyError(layout)


def wrap_unreduced(problem: Problem, violation: Violation, recording: Recording) -> Smallest:
    """Wrap a failure examined again as the result of a search without reductions."""
    return Smallest(
        problem=problem, violation=violation, recording=recording, tries=0, repeated=True
    )


def outcome(argument: dict[str, Any], violation: Violation) -> str:
    """Whether a violation is that of the report: "fails", else "differs"."""
    same = same_but_for_numbers(Violation(**argument["violation"]), violation)
    return "fails" if same else "differs"


def access(plan: CandidatePlan) -> dict[str, Any]:
    """Describe how a script finds the candidate, and whether calls work without the harness."""
    candidate = plan.candidate
    function = candidate.function
    module = str(getattr(function, "__module__", "") or type(function).__module__)
    return {
        "adapted": candidate.graph is None and module.startswith("conformance.adapters"),
        "graph": None if candidate.graph is None else described(candidate.graph),
        "batched": plan.candidate.declaration.batched,
        "layout": plan.candidate.declaration.layout,
        "arrays": plan.candidate.declaration.arrays,
        "compiled": candidate.eager is not None,
        "kind": plan.candidate.kind,
        "ranks": plan.candidate.declaration.ranks is not None,
    }
