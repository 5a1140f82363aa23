"""operator.*: what an operator registers with torch is true; compile.*: so are compiled answers."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ..adapters.compiled import COMPILED_CLAUSES, graphs_compiled
from ..base.printable_text import printable
from ..calls.calling import Forward, arguments
from ..declare.candidate import Candidate
from ..declare.operators import (
    Called,
    DispatchedCalls,
    PythonCalls,
    argument_names,
    registered_operator,
    written_arguments,
)
from ..problems.problem import Problem
from ..problems.space import OPTIONS, Space
from .judging import relate
from .registry import Finding, clause, requires, violated
from .subject import Subject

# The meaning of a failure of each of opcheck's tests.
MEANINGS: Final = {
    "test_schema": "its schema does not say what it does to its arguments",
    "test_autograd_registration": "its gradients are not registered where torch looks for them",
    "test_faketensor": "its fake implementation (shapes without numbers) is missing or wrong",
    "test_aot_dispatch_dynamic": "it answers differently, or not at all, once it is traced",
}
SUCCESS: Final = "SUCCESS"


_is_operator = requires(lambda c: c.declaration.operator, "no operator is declared")


@clause(
    "operator.opcheck",
    sentence=(
        "A registered operator passes torch.library.opcheck: what its schema says of mutation and "
        "aliasing is true, and its gradients, its fake implementation and its trace agree with it."
    ),
    source="torch.library.opcheck and the custom operators manual",
    # Each check traces the operator again, which takes half a second.
    space=OPTIONS.replace(share=0.01, edges="combinations", purpose="operator"),
    applies=(_is_operator,),
    explained=False,
)
def opcheck(subject: Subject, problem: Problem) -> Finding:
    """The arguments that the operator gets in a call of the candidate, checked by torch."""
    inputs = subject.inputs(problem)
    calls = _calls(subject, problem)
    name = subject.declaration.operator
    if not calls:
        message = f"a call never reaches the operator {name}, which it declares"
        return violated("not-called", message, expected=name)
    overload, positional, named = calls[0]
    with_gradients = "gradients" in subject.declaration.features
    copies = _copied_arguments(overload, positional, named, with_gradients=with_gradients)
    results = torch.library.opcheck(overload, *copies, raise_exception=False)
    wrong = {test: result for test, result in results.items() if result != SUCCESS}
    if not wrong:
        return Finding()
    test, result = next(iter(wrong.items()))
    shapes = f"queries {list(inputs.query.shape)}"
    message = f"{MEANINGS.get(test, test)} ({test}, {shapes}): {_first_line(result)}"
    return violated("opcheck", printable(message), expected=SUCCESS, got=sorted(wrong))


def _calls(subject: Subject, problem: Problem) -> list[Called]:
    """The candidate's calls of the operator from Python, or, without any, from C++."""
    packet = registered_operator(subject.declaration.operator)
    inputs = subject.inputs(problem)
    forward = subject.forward(inputs)
    for mode in (PythonCalls(packet), DispatchedCalls(packet)):
        subject.call_with(_under(mode, forward), arguments(inputs), inputs)
        if mode.calls:
            return mode.calls
    return []


def _under(mode: AbstractContextManager[Any], forward: Forward) -> Forward:
    def called(*positional: Any, **keywords: Any) -> Any:
        with mode:
            return forward(*positional, **keywords)

    return called


def _copied_arguments(
    overload: Any, positional: tuple[Any, ...], named: dict[str, Any], *, with_gradients: bool
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Copies of the arguments; differentiable arguments require gradients if asked."""
    written = written_arguments(overload)

    def copied(name: str, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        copy = value.detach().clone()
        requires_grad = with_gradients and copy.is_floating_point() and name not in written
        return copy.requires_grad_(requires_grad)

    names = argument_names(overload)
    return (
        tuple(copied(name, value) for name, value in zip(names, positional, strict=False)),
        {name: copied(name, value) for name, value in named.items()},
    )


def _first_line(result: Any) -> str:
    lines = [line.strip() for line in str(result).splitlines() if line.strip()]
    return f"{type(result).__name__}: {lines[0] if lines else ''}"


_EAGER: WeakKeyDictionary[Subject, Subject] = WeakKeyDictionary()
NOTHING = "torch.compile compiles nothing of it: every call runs as it is"


_is_compiled = requires(lambda c: c.eager is not None, "it is not compiled (--compile)")


def left_to_eager(candidate: Candidate, slug: str) -> str:
    """Why a clause is judged for the candidate before torch.compile only, or ""."""
    if candidate.eager is None or slug in COMPILED_CLAUSES:
        return ""
    return "asked of the candidate as it is, uncompiled"


@clause(
    "compile.agrees",
    sentence="Through torch.compile, with static and with dynamic sizes, the answer is the same.",
    source="torch.compile's contract; pytorch#96941, #127055: compiled attention alone is wrong",
    space=Space(mask="maybe", causal="maybe", extras="maybe"),
    applies=(_is_compiled,),
    explained=False,
)
def compiled_agrees(subject: Subject, problem: Problem) -> Finding:
    """The eager candidate's answer and the compiled one's, within both bounds."""
    inputs = subject.inputs(problem)
    answer = subject.answer(inputs)
    graphs = graphs_compiled()
    eager = _eager(subject).answer(inputs)
    wording = "compiled, it answers otherwise than as it is"
    finding = relate(subject, (inputs, eager), (inputs, answer), wording)
    if not graphs:
        return Finding(inapplicable=NOTHING, violation=finding.violation)
    return finding


def _eager(subject: Subject) -> Subject:
    """The subject of the candidate before it was compiled."""
    if subject.candidate.eager is None:
        msg = "the clause does not apply to what is not compiled"
        raise LookupError(msg)
    if subject not in _EAGER:
        _EAGER[subject] = Subject(subject.candidate.eager, subject.dtype, subject.device)
    return _EAGER[subject]
