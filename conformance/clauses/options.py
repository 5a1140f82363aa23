"""numerics.options: options given together in one call do not disturb each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ..calls.calling import Answer, CandidateFailure, RowWithoutKeysRefused
from ..declare.candidate import Candidate
from ..problems.caching import without_cache
from ..problems.fitting import causal_flag, counts_from_first_key
from ..problems.inputs import OPTIONAL, Inputs
from ..problems.problem import Problem
from ..problems.space import EVERY_OPTION, can_cross
from .empty_rows import follows_empty_rule, has_no_empty_rows
from .judging import all_of, are_golden_weights, matches_golden
from .registry import Finding, clause, requires
from .subject import Subject

CONTIGUOUS: Final = "contiguous"
TOGETHER = EVERY_OPTION.replace(
    values=("normal",),
    patterns=("random", "dense", "padding", "mixed"),
    share=0.25,
    edges="combinations",
)


_some_option = requires(
    lambda c: c.declaration.masks or c.declaration.causal or c.declaration.features & set(OPTIONAL),
    "no option is declared",
)


@clause(
    "numerics.options",
    sentence=(
        "Whatever is given in one call acts, whatever else is: options, forms and shapes of masks, "
        "sizes, places in memory and what is returned, every two or three of them."
    ),
    source="pytorch#187801: both given, one lost; Kuhn, Wallace & Gallo 2004 on pairs and triples",
    space=TOGETHER,
    needs_golden=True,
    counterfactual="one of them lost",
    applies=(_some_option,),
    subtle=True,
)
def options(subject: Subject, problem: Problem) -> Finding:
    """Combinations of all declared options; losing an option, by the seed, must show."""

    def answer(placed: Problem) -> Finding:
        inputs = subject.inputs(placed)
        answer = subject.call(subject.forward(inputs), inputs)
        return answers_rightly(subject, placed, inputs, answer)

    return unless_refused_alone(subject, problem, answer)


_promises_empty_rows = requires(
    lambda c: any(rule != "any" for rule in c.declaration.empty_rules),
    "it promises nothing about rows without keys",
)


def _none_is_empty(candidate: Candidate) -> str:
    """Unless no call can have a row without keys, whatever its options."""
    windowed = "window" in candidate.declaration.features and can_cross(candidate)
    if windowed and not counts_from_first_key(candidate):
        return ""  # a window beyond the first or the last key
    return has_no_empty_rows(candidate)


@clause(
    "mask.empty-row-options",
    sentence=(
        "A query without any key returns what the candidate promises whatever is given together: "
        "options, forms and shapes of masks, sizes, places in memory, a cache, what is returned."
    ),
    source="pytorch#160064: NaN with one option alone; merged partial answers without any key",
    space=TOGETHER,
    needs_golden=True,
    counterfactual="another rule for a query without any key",
    applies=(_some_option, _promises_empty_rows, _none_is_empty),
    subtle=True,
)
def empty_rows_with_options(subject: Subject, problem: Problem) -> Finding:
    """The calls of numerics.options, made where some query has no key."""
    inputs = subject.inputs(problem)
    if not bool(subject.golden(inputs).empty_rows.any()):
        return Finding(binding=False)

    def answer(placed: Problem) -> Finding:
        inputs = subject.inputs(placed)
        rule = subject.oracle.empty_rule(inputs)
        wording = f"a query without any key does not return what is declared ({rule})"
        output = subject.call(subject.forward(inputs), inputs).output
        return follows_empty_rule(subject, inputs, output, rule, wording)

    return unless_refused_alone(subject, problem, answer)


def unless_refused_alone(
    subject: Subject, problem: Problem, judge: Callable[[Problem], Finding]
) -> Finding:
    """The finding of a check; with contiguous tensors where the memory layout alone is refused.

    Other clauses judge the refusal of a layout; this clause judges its behaviour with options.
    """
    try:
        return judge(problem)
    except RowWithoutKeysRefused:
        raise
    except CandidateFailure as failure:
        if failure.violation.kind != "raised" or not _refuses_place(subject, problem):
            raise
        return judge(problem.replace(layout=CONTIGUOUS, mask_layout=CONTIGUOUS, shared=""))


def _refuses_place(subject: Subject, problem: Problem) -> bool:
    """Whether the layout of the tensors, or of the mask, is refused even without any option."""
    plain = Problem(
        geometry=problem.geometry,
        dtype=problem.dtype,
        seed=problem.seed,
        causal=causal_flag(subject.candidate, flagged=False),
        device=problem.device,
        layout=problem.layout,
        shared=problem.shared,
    )
    masked = plain.replace(
        layout=CONTIGUOUS, shared="", mask=problem.mask, mask_layout=problem.mask_layout
    )
    for placed in (plain, masked):
        contiguous = placed.replace(layout=CONTIGUOUS, mask_layout=CONTIGUOUS, shared="")
        refused = placed != contiguous and not subject.answers(subject.inputs(placed))
        if refused and subject.answers(subject.inputs(contiguous)):
            return True
    return False


def answers_rightly(subject: Subject, problem: Problem, inputs: Inputs, answer: Answer) -> Finding:
    """Every row of an answer that has a key, and the returned weights, are right."""
    lost = _losses(inputs)
    other = lost[problem.seed % len(lost)] if lost else None
    wording = "the answer differs from the expected one"
    judged = matches_golden(subject, inputs, wording, answer=answer.output, counterfactual=other)
    findings = [judged]
    if inputs.return_weights:
        findings.append(are_golden_weights(subject, inputs, answer))
    return all_of(findings)


def _losses(inputs: Inputs) -> list[Inputs]:
    """Inputs with one of their options left out, each option in turn."""
    names = [name for name in OPTIONAL if getattr(inputs, name) is not None]
    lost = [inputs.replace(**{name: None}) for name in names]
    lost += [inputs.without_mask()] if inputs.masked else []
    lost += [without_cache(inputs)] if inputs.past else []
    return lost + ([inputs.replace(causal=False)] if inputs.causal else [])
