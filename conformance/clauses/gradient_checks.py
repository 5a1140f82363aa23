"""gradients.check, .double-backward: slopes of the candidate's answers, and of its gradients."""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from ..base.results import Violation
from ..calls.calling import guarded
from ..calls.differentiating import COMPUTING_GRADIENTS, Taped, as_returned
from ..declare.candidate import Candidate
from ..oracle.comparison import compare
from ..oracle.gradient_oracle import second_gradients
from ..problems.inputs import Inputs
from ..problems.materialise import generator_for
from ..problems.problem import Problem
from ..problems.recipes import normal
from ..problems.space import Space
from .judging_gradients import (
    GradientRun,
    axes_of,
    cannot_be_judged,
    described,
    gradient_bounds,
    measured_bounds,
    output_gradient,
    records_gradients,
    with_full_rows,
)
from .registry import Finding, clause
from .subject import Subject

# Points of a line through the inputs, and the degree of the polynomial that is fitted to them.
POINTS: Final = 9
DEGREE: Final = 7
# The line is this long in units of inputs divided by the root of their width: logits move by about
# as much, and the softmax is a series that converges as long as they move by less than pi.
REACH: Final = 0.05
SMOOTH = ("normal", "integers", "tied-keys", "nearly-uniform")


@clause(
    "gradients.check",
    sentence=(
        "In float64 the gradients are the slopes of the candidate's own answers, to within what "
        "their rounding lets finite differences tell."
    ),
    source="torch.autograd.gradcheck",
    space=Space(mask="maybe", causal="maybe", extras="maybe", values=SMOOTH, share=0.15),
    counterfactual="gradients of half the size",
    applies=(records_gradients,),
)
def check(subject: Subject, problem: Problem) -> Finding:
    """The slope along a random line through all inputs."""
    if subject.dtype != "float64":
        return Finding(inapplicable="finite differences need float64")
    inputs = with_full_rows(subject, problem)
    if cannot_be_judged(subject, inputs):
        return Finding(binding=False)
    upstream = output_gradient(subject, problem, inputs)
    gradients = subject.gradients.pull(subject.gradients.tape(inputs), upstream)
    run = GradientRun(inputs=inputs, upstream=upstream, gradients=gradients)
    bounds = gradient_bounds(subject, run)
    if not bounds:
        return Finding(binding=False)
    line = _line(inputs, problem)
    names = [name for name in gradients.by_name if name in line]
    slope = sum(float((gradients.by_name[n].double() * line[n]).sum()) for n in names)
    rounding = sum(float((bounds[n] * line[n].abs()).sum()) for n in names)
    measured, error = _measured_slope(subject, inputs, upstream, line)
    allowed = rounding + error
    apart = abs(slope - measured)
    margin = apart / allowed if allowed else math.inf * (apart > 0.0)
    binding = abs(measured) > 2.0 * allowed
    if apart <= allowed:
        return Finding(binding=binding, margin=margin)
    message = (
        f"along a line through the inputs the answer has the slope {measured:.9g}, but its "
        f"gradients say {slope:.9g} (allowed {allowed:.3g})"
    )
    violation = Violation(
        kind="value",
        message=message,
        expected=measured,
        got=slope,
        measured={"margin": margin, "error": apart, "bound": allowed},
    )
    return Finding(binding=binding, margin=margin, violation=violation)


def _line(inputs: Inputs, problem: Problem) -> dict[str, Tensor]:
    """A direction for every input, by the names of the gradients."""
    generator = generator_for(problem, 34)

    def drawn(tensor: Tensor) -> Tensor:
        return normal(tuple(tensor.shape), generator) / math.sqrt(max(tensor.shape[-1], 1))

    if inputs.mode == "self":
        return {"x": drawn(inputs.key)}
    if inputs.mode == "memory":
        return {"query": drawn(inputs.query), "context": drawn(inputs.key)}
    return {name: drawn(getattr(inputs, name)) for name in ("query", "key", "value")}


def _moved(inputs: Inputs, line: dict[str, Tensor], step: float) -> Inputs:
    named = {"x": "key", "context": "key"}
    moved = {
        named.get(name, name): getattr(inputs, named.get(name, name)) + step * direction
        for name, direction in line.items()
    }
    return inputs.with_tokens(**moved)


def _measured_slope(
    subject: Subject, inputs: Inputs, upstream: Tensor, line: dict[str, Tensor]
) -> tuple[float, float]:
    """The slope of ``<upstream, answer>`` along a line, and how far it may be off.

    A polynomial is fitted to points of the line. The rounding error of its slope follows from the
    error of each answer; the truncation error from the slopes of fits of lower degrees.
    """
    steps = REACH * torch.cos(torch.pi * (torch.arange(POINTS).double() + 0.5) / POINTS)
    values, errors = [], []
    forward = subject.forward(inputs)
    for step in steps.tolist():
        moved = _moved(inputs, line, step)
        values.append(float((subject.call(forward, moved).output.double() * upstream).sum()))
        errors.append(_rounding(subject, moved, upstream))
    heights = torch.tensor(values, dtype=torch.float64)
    weights, *fewer = (_slope_weights(steps, DEGREE - less) for less in (0, 2, 4))
    slope, better, coarse = (float(each @ heights) for each in (weights, *fewer))
    rounding = float(weights.abs() @ torch.tensor(errors, dtype=torch.float64))
    return slope, rounding + abs(slope - better) + abs(better - coarse)


def _slope_weights(steps: Tensor, degree: int) -> Tensor:
    """The weight of each point in the slope at 0 of the polynomial of best fit."""
    powers = (steps / REACH).unsqueeze(-1) ** torch.arange(degree + 1)
    weights: Tensor = torch.linalg.pinv(powers)[1] / REACH
    return weights


def _rounding(subject: Subject, inputs: Inputs, upstream: Tensor) -> float:
    """How far rounding may move ``<upstream, answer>``."""
    if subject.candidate.golden_known:
        bound = subject.golden(inputs).bound
    else:
        bound = subject.spread(inputs)
    return float((bound * upstream.double().abs()).sum())


def _twice(candidate: Candidate) -> str:
    if "double_backward" not in candidate.declaration.features:
        return "double_backward is not declared"
    if not candidate.golden_known:
        return "there is no golden answer"
    return records_gradients(candidate)


@clause(
    "gradients.double-backward",
    sentence="The gradients can be differentiated once more, and give the golden second ones.",
    source="torch.autograd.gradgradcheck; create_graph=True",
    space=Space(
        mask="maybe",
        causal="maybe",
        values=("normal", "integers"),
        least=(("key_length", 2), ("query_length", 2)),
        share=0.15,
    ),
    counterfactual="second gradients of zero",
    applies=(_twice,),
    subtle=True,
)
def double_backward(subject: Subject, problem: Problem) -> Finding:
    """The gradient of a random sum of the gradients, against the golden in float64.

    The bound is measured: the change under a change of the inputs in their last digit.
    """
    inputs = with_full_rows(subject, problem)
    if cannot_be_judged(subject, inputs):
        return Finding(binding=False)
    upstream = output_gradient(subject, problem, inputs)
    line = _line(inputs, problem)
    computed = _second(subject, inputs, upstream, line)
    golden_gradients = second_gradients(subject.oracle, inputs, upstream, line)
    allowed = measured_bounds(
        subject, inputs, computed, lambda moved: _second(subject, moved, upstream, line)
    )
    binding, margin, violation = False, 0.0, None
    for name, expected in golden_gradients.items():
        wording = f"the second gradient of {described(name)} is wrong"
        agreement = compare(
            computed[name], expected, allowed[name], wording=wording, axes=axes_of(name, inputs)
        )
        margin = max(margin, agreement.margin)
        violation = violation or agreement.violation
        binding = binding or bool((expected.abs() > 2.0 * allowed[name]).any())
    return Finding(binding=binding, margin=margin, violation=violation)


def _second(
    subject: Subject, inputs: Inputs, upstream: Tensor, line: dict[str, Tensor]
) -> dict[str, Tensor]:
    """The gradients of ``<gradients, line>`` by every input."""
    taped = subject.gradients.tape(inputs)
    action = f"{COMPUTING_GRADIENTS} twice"
    return guarded(_pulled_twice, (taped, upstream, line), {}, action, grad_mode=True)  # type: ignore[no-any-return]  # what the function returns


def _pulled_twice(taped: Taped, upstream: Tensor, line: dict[str, Tensor]) -> dict[str, Tensor]:
    whole = (taped.returned * as_returned(upstream, taped)).sum()
    first = torch.autograd.grad(whole, taped.all_leaves, create_graph=True, allow_unused=True)
    canonical = taped.connected(first)
    total = sum((canonical[name] * line[name].to(canonical[name])).sum() for name in line)
    again = torch.autograd.grad(total, taped.all_leaves, allow_unused=True)  # type: ignore[arg-type]  # a tensor, as there are inputs
    return taped.gather(again).by_name
