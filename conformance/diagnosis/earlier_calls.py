"""Dependence of answers on earlier calls and on places in memory."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ..base.mistake import UNKNOWN
from ..base.patience import fair_clock
from ..calls.calling import Answer, Arguments, CandidateFailure, Forward, arguments, guarded
from ..calls.devices import taken
from ..calls.recording import Recording
from ..clauses.registry import Clause
from ..clauses.subject import Differentiator, Subject
from ..declare.candidate import Candidate
from ..errors import UsageError
from ..oracle.oracle import Golden
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from ..targets import loading
from ..targets.resolving import candidates_in, object_of
from ..targets.target_strings import split_target
from ..tolerance import model
from .agreement import BatteryAnswer
from .battery import answer_to, plain_problem
from .conditions import CONDITIONS
from .entries import named_entry
from .neighbours import OWN, neighbours, resize_field

# The clause that compares inputs before and after a call.
CHANGED_INPUTS: Final = "state.inputs-unchanged"
# Layouts whose strides are not those of rows, with nothing beside the elements.
TRANSPOSED: Final = ("channels-first", "tokens-first")
# Seconds that executing a candidate's module again may take in all: its code may do anything.
LONGEST_ANEW: Final = 10.0
_SPENT: Final[WeakKeyDictionary[Subject, float]] = WeakKeyDictionary()
_FIX: Final = "keep nothing of a call for the next one, or keep it by all that it depends on"
# The entry of answers that are right for contiguous inputs alone.
STRIDES_IGNORED: Final[dict[str, Any]] = named_entry(
    "strides-ignored",
    "a tensor is read as if it lay row after row in memory",
    "honour the strides of the inputs, or call contiguous() on them",
)
# The entry of a second call that is answered wrongly in an unknown way.
SECOND_CALL: Final[dict[str, Any]] = named_entry(
    "state: something of the first call in the second",
    "the answer to the same call is another the second time: something is kept from call to call",
    _FIX,
)
# The entry of an answer that an unknown earlier call makes wrong.
EARLIER_CALLS: Final[dict[str, Any]] = named_entry(
    "state: something of earlier calls",
    "the answer depends on earlier calls: this call is answered rightly where it is the first",
    _FIX,
)


def second_calls(subject: Subject) -> Subject:
    """Return the subject of a candidate whose answer to each call is its second answer."""

    def twice(called: Callable[..., Any]) -> Callable[..., Any]:
        def answer(*positional: Any, **keywords: Any) -> Any:
            called(*positional, **keywords)
            return called(*positional, **keywords)

        return answer

    return subject.called_otherwise(twice)


def limit_to_second_calls(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return entries for a candidate from the diagnosis of its second calls."""
    if not entries or entries[0]["name"] == UNKNOWN:
        return [SECOND_CALL]
    return [
        {
            **entry,
            "name": f"state: from the second call on {entry['name']}",
            "text": f"the first call is answered rightly; from the second call on {entry['text']}",
            "fix": f"{_FIX}: {entry['fix']}" if entry["fix"] else _FIX,
        }
        for entry in entries
    ]


# Fresh copies that must all show the effect: chance is no state.
_COPIES: Final = 16


def keeps_state(subject: Subject, problem: Problem) -> bool:
    """Whether a built candidate answers the same call differently the second time.

    All fresh copies, where copies can be made, must do the same.
    """
    inputs = subject.inputs(problem)
    both = _twice_answered(subject, inputs)
    if both is None or not _apart(subject, inputs, *both):
        return False
    copies = filter(None, (_copy(subject) for _ in range(_COPIES)))
    pairs = filter(None, (_twice_answered(copy, inputs) for copy in copies))
    return all(_apart(subject, inputs, *pair) for pair in pairs)


def _twice_answered(subject: Subject, inputs: Inputs) -> tuple[Tensor, Tensor] | None:
    positional, keywords = arguments(inputs)
    try:
        forward = subject.forward(inputs)
        first, second = (guarded(forward, positional, keywords) for _ in range(2))
    except CandidateFailure:
        return None
    if not (isinstance(first, Tensor) and isinstance(second, Tensor)):
        return None
    if first.shape != second.shape or first.shape != inputs.output_shape:
        return None
    return taken(first).double(), taken(second).double()


def _apart(subject: Subject, inputs: Inputs, one: Tensor, other: Tensor) -> bool:
    return bool(((one - other).abs() > subject.golden(inputs).bound).any())


# Numbers of keys and queries that no other problem has: nothing is cached for these sizes.
_UNSEEN: Final = {"key_length": 13, "query_length": 11}
# Added to the seed of a problem for the values of its second call.
_OTHER_SEED: Final = 104_729
_TWICE: Final = 2


def state_entry(subject: Subject) -> dict[str, Any] | None:
    """Return the entry that names the trace of an earlier call in the next answer, or None.

    Two rounds of two calls are made at unseen sizes: the second answer must be right when something
    of the first call replaces its own.
    """
    base = plain_problem(subject)
    if base is None:
        return None
    common: list[str] | None = None
    for turn in range(_TWICE):
        problem = base.replace(seed=base.seed + turn)
        for field, size in _UNSEEN.items():
            problem = resize_field(subject, problem, field, size + 2 * turn) or problem
        kept = [words for one in _options(subject, problem) for words in _left_over(subject, one)]
        common = kept if common is None else [words for words in common if words in kept]
    if not common:
        return None
    return named_entry(f"state: {common[0]}", f"a call is answered with {common[0]}", _FIX)


def _options(subject: Subject, problem: Problem) -> Iterator[Problem]:
    yield problem
    near = neighbours(subject, problem, (OWN,))
    yield from [one for one in near if one.mask is not None and one.scale is None][:1]
    yield from [one for one in near if one.scale is not None and one.mask is None][:1]


def _left_over(subject: Subject, problem: Problem) -> list[str]:
    """Return what of a first call makes the answer to a second call, of other values, right."""
    earlier = subject.inputs(problem)
    other = subject.inputs(problem.replace(seed=problem.seed + _OTHER_SEED))
    if other.score_shape != earlier.score_shape:
        return []
    tokens = {name: getattr(other, name) for name in ("query", "key", "value")}
    later = earlier.with_tokens(**tokens).replace(keep=other.keep, bias=other.bias, scale=None)
    try:
        forward = subject.forward(earlier)
        first, second = (subject.call(forward, one).output.double() for one in (earlier, later))
    except CandidateFailure:
        return []
    exact = subject.golden(later)
    if not _differ_from(second, exact.output, exact):
        return []
    apart = later.replace(
        mode="separate"
    )  # with one object for all, only its keys may be an earlier call's
    words = [
        words
        for words, change in _KEPT.items()
        if not _differ_from(second, subject.golden(change(earlier, apart)).output, exact)
    ]
    # Two wrong answers may be alike, as zeros are: the first has to be right.
    own = subject.golden(earlier)
    if not (_differ_from(second, first, exact) or _differ_from(first, own.output, own)):
        words.insert(0, "the answer of an earlier call")
    elif not _differ_from(second - exact.output, first, exact):
        words.append("the answer of an earlier call added to its own")
    return words


def _differ_from(answer: Tensor, expected: Tensor, exact: Golden) -> bool:
    judged = exact.judged.expand(expected.shape)
    near = (answer - expected).abs() <= model.ACTED_ROOM * exact.bound
    return bool((~near & judged).any())


def _accumulated(earlier: Inputs, later: Inputs) -> Inputs:
    if later.masked:
        return later
    both = (
        torch.cat([getattr(one, name) for one in (earlier, later)], -2) for name in ("key", "value")
    )
    return later.with_tokens(**dict(zip(("key", "value"), both, strict=True)))


# What a candidate may keep of a call: the later inputs with parts of the earlier ones.
_KEPT: Final[dict[str, Callable[[Inputs, Inputs], Inputs]]] = {
    "the query of an earlier call": lambda earlier, later: later.with_tokens(query=earlier.query),
    "the keys of an earlier call": lambda earlier, later: later.with_tokens(key=earlier.key),
    "the values of an earlier call": lambda earlier, later: later.with_tokens(value=earlier.value),
    "keys and values of an earlier call": lambda earlier, later: later.with_tokens(
        key=earlier.key, value=earlier.value
    ),
    "the keys and values of an earlier call before its own": _accumulated,
    "the weights of an earlier call, or its queries and keys": lambda earlier, later: (
        later.with_tokens(query=earlier.query, key=earlier.key)
    ),
    "the mask of an earlier call": lambda earlier, later: later.replace(
        keep=earlier.keep, bias=earlier.bias
    ),
    "the scale of an earlier call": lambda earlier, later: later.replace(scale=earlier.scale),
}

# Sizes in which an earlier call differs from the failing one, with their words.
_RESIZED: Final = (
    ("key_length", "keys"),
    ("query_length", "queries"),
    ("batch", "items"),
    ("num_heads", "heads"),
)
# Further changes with which the effect of an earlier call is confirmed.
_OTHERWISE: Final[tuple[dict[str, Any], ...]] = (
    {"values": "normal"},
    {"values": "normal", "mask": None},
    {},
)


def _earlier_calls(subject: Subject, problem: Problem) -> Iterator[tuple[str, Problem]]:
    """Yield calls that may leave something for a failing call, with their difference in words."""
    yield "other values", problem.replace(overrides=None, seed=problem.seed + _OTHER_SEED)
    for field, plural in _RESIZED:
        size = getattr(problem.geometry, field)
        for word, other in (("more", size + 1), ("fewer", size // 2), ("more", 2 * size + 6)):
            resized = resize_field(subject, problem, field, other) if other else None
            if resized is not None:
                yield f"{word} {plural}", resized
    sizes = problem.geometry
    shorter = resize_field(subject, problem, "query_length", max(sizes.query_length // 2, 1))
    if shorter is not None and sizes.key_length > 1:  # no fewer keys than queries may be asked
        shorter = resize_field(subject, shorter, "key_length", sizes.key_length // 2)
        yield from [] if shorter is None else [("fewer queries and keys", shorter)]
    own = subject.inputs(problem)
    for other in neighbours(subject, problem, (OWN,)):
        inputs = subject.inputs(other)
        options = (one for one in CONDITIONS if one.sizes is None)
        told = (one for one in options if one.holds(inputs) and not one.holds(own))
        option = next((one.words for one in told if one.words.startswith("with ")), "")
        if option:
            yield option.removeprefix("with "), other


def order_entry(subject: Subject, problem: Problem) -> dict[str, Any] | None:
    """Return the entry of an answer that is wrong only after earlier calls; None for other answers.

    A fresh copy answers rightly, and wrongly after an earlier call, with other values as well. If
    no specific call is found, the entry blames earlier calls in general.
    """
    if not _always_right_anew(subject, subject.inputs(problem)):
        return None
    for what, earlier in _earlier_calls(subject, problem):
        if _makes_wrong(subject, problem, earlier):
            same = what == "other values" and _makes_wrong(subject, problem, problem)
            which = "the same call, or one with other values" if same else f"one with {what}"
            return named_entry(
                f"state: something of an earlier call with {what}",
                "the answer depends on earlier calls: this call is answered rightly where "
                f"it is the first, and wrongly after {which}",
                _FIX,
                after={"call": f"a call with {what}", "problem": earlier.as_json()},
            )
    return EARLIER_CALLS


def _makes_wrong(subject: Subject, problem: Problem, earlier: Problem) -> bool:
    made = subject.inputs(problem), subject.inputs(earlier)
    return right_anew(subject, *made) is False and _confirmed(subject, problem, earlier)


class Copying(Subject):
    """A subject whose calls get copies of their inputs, except of the ``out`` buffer.

    Copies have the strides of the inputs, or are ``contiguous``.
    """

    def __init__(self, subject: Subject, *, contiguous: bool = False) -> None:
        vars(self).update(vars(subject))
        self.gradients = Differentiator(self)
        self._contiguous = contiguous

    def call_with(self, forward: Forward, call_arguments: Arguments, inputs: Inputs) -> Answer:
        """Call a forward with copies of its arguments."""

        def copying(*positional: Any, **keywords: Any) -> Any:
            copies = {k: v if k == "out" else self._copy(v) for k, v in keywords.items()}
            return forward(*map(self._copy, positional), **copies)

        return super().call_with(copying, call_arguments, inputs)

    def _copy(self, argument: Any) -> Any:
        if not isinstance(argument, Tensor):
            return argument
        if self._contiguous or argument.layout != torch.strided or argument.is_nested:
            return argument.clone(memory_format=torch.contiguous_format)
        return _clone_with_strides(argument)


def _clone_with_strides(tensor: Tensor) -> Tensor:
    """Copy a tensor with its gaps, which clone() would close; gradients pass.

    An expanded axis is copied in full, so that the copy can be written to.
    """
    if not all(tensor.stride()):
        return tensor.clone()
    copy = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return copy.copy_(tensor)


def changed_inputs_entry(
    subject: Subject, clause: str, fails: Callable[[Subject], bool]
) -> dict[str, Any] | None:
    """Return the entry of a call that overwrites its inputs but is right with copies.

    ``fails`` asks a subject the problem that fails the clause.
    """
    shown = clause == CHANGED_INPUTS or bool(subject.edited)
    if not shown or fails(Copying(subject)):
        return None
    return named_entry(
        "inputs-changed",
        "the call writes into its inputs; where it is given copies of them it is right",
        "write into no input: use operations that are not in place, or work on a copy",
    )


def strides_entry(subject: Subject, fails: Callable[[Subject], bool]) -> dict[str, Any] | None:
    """Return the entry of a call that is right for contiguous inputs alone.

    ``fails`` asks a subject the problem that fails the clause.
    """
    right = not fails(Copying(subject, contiguous=True))
    return STRIDES_IGNORED if right and ignores_strides(subject) else None


def ignores_strides(subject: Subject) -> bool:
    """Whether an answer is right for contiguous inputs and wrong for transposed ones.

    The memory beside their elements is empty, so no gap can be read by mistake.
    """
    base = plain_problem(subject)
    if base is None:
        return False
    inputs = subject.inputs(base)
    answers = [
        answer_to(subject, inputs.replace(layout=layout)) for layout in (inputs.layout, *TRANSPOSED)
    ]
    wrong = [answer is not None and answer.margin > 1.0 for answer in answers]
    return any(wrong) and not wrong[0]


def makes_law_fail(subject: Subject, clause: Clause, problem: Problem) -> bool:
    """Whether a clause meets a wrong answer to a call that a fresh copy always answers rightly."""
    answers, _ = answers_to_clause(subject, clause, problem)
    return any(one.margin > 1.0 and _always_right_anew(subject, one.inputs) for one in answers)


def answers_to_clause(
    subject: Subject, clause: Clause, problem: Problem
) -> tuple[list[BatteryAnswer], bool]:
    """Return the answers to a clause's calls, and whether it fails with every call answered.

    Calls that write into a buffer of the caller are left out: inputs alone do not repeat them.
    """
    recording, fails = Recording(), True
    with subject.recorded(recording), contextlib.suppress(CandidateFailure):
        fails = clause.check(subject, problem).violation is not None
    calls = [call for call in recording.calls if "out" not in call.arguments[1]]
    answers = [
        BatteryAnswer(subject=subject, inputs=call.inputs, output=call.output.double())
        for call in calls
        if call.output is not None
    ]
    return answers, fails and len(answers) == len(recording.calls)


def compares_wrong_answers(subject: Subject, clause: Clause, problem: Problem) -> bool:
    """Whether a failing clause meets a wrong answer to an ordinary call.

    Shared tensors and unusual memory layouts do not count: they are other mistakes.
    """
    answers, fails = answers_to_clause(subject, clause, problem)
    given = ((one, one.inputs) for one in answers if not one.inputs.shared)
    plain = (one for one, its in given if {its.layout, its.mask_layout} == {"contiguous"})
    return fails and any(one.margin > 1.0 for one in plain)


def _confirmed(subject: Subject, problem: Problem, earlier: Problem) -> bool:
    shown = False
    for turn, changes in enumerate(_OTHERWISE):
        other, before = (
            subject.inputs(
                one.replace(overrides=None, seed=one.seed + (2 + turn) * _OTHER_SEED, **changes)
            )
            for one in (problem, earlier)
        )
        if not right_anew(subject, other):
            return False
        shown = shown or right_anew(subject, other, before) is False
    return shown


def right_anew(subject: Subject, *calls: Inputs) -> bool | None:
    """Whether a fresh copy answers the first inputs rightly after the other calls.

    None if there is no copy or no answer.
    """
    copy = _copy(subject)
    if copy is None:
        return None
    inputs, *earlier = calls
    for one in earlier:
        answer_to(copy, one)
    answer = answer_to(copy, inputs)
    return None if answer is None else answer.margin <= 1.0


def _always_right_anew(subject: Subject, inputs: Inputs) -> bool:
    return all(right_anew(subject, inputs) for _ in range(_COPIES))


def _copy(subject: Subject) -> Subject | None:
    spent, begun = _SPENT.get(subject, 0.0), fair_clock()
    if spent > LONGEST_ANEW:
        return None
    candidate = loaded_anew(subject.candidate)
    _SPENT[subject] = spent + fair_clock() - begun
    if candidate is None:
        return None
    return subject.like(candidate)


def loaded_anew(candidate: Candidate) -> Candidate | None:
    """Return the candidate from a freshly executed copy of its module.

    State kept by its own module is gone, state kept by other modules is not. None if its code must
    not run in this process, or if no copy can be made or identified.
    """
    runs_here = not (candidate.isolated or candidate.graph is not None)
    if not runs_here or candidate.of_model or candidate.eager is not None or not candidate.target:
        return None
    try:
        where, name = split_target(candidate.target)
        module = object_of(where)
        copy = _executed_again(module) if isinstance(module, ModuleType) else None
        every = [] if copy is None else [one for one, _ in candidates_in(copy, where, name)]
        found = [one for one in every if isinstance(one, Candidate)]
    except UsageError:
        return None
    names = (candidate.name, candidate.first_name)
    found = [one for one in found if one.kind == candidate.kind]
    same = found if len(found) == 1 else [one for one in found if one.name in names]
    return same[0] if len(same) == 1 else None


def _executed_again(module: ModuleType) -> ModuleType | None:
    """Execute a second copy of a module, registered under its name only meanwhile."""
    spec = module.__spec__
    if spec is None or spec.loader is None:
        return None
    loader, copy = spec.loader, importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = copy
    try:
        loading.guarded(f"{spec.name} cannot be executed again", lambda: loader.exec_module(copy))
    finally:
        sys.modules[spec.name] = module
    return copy
