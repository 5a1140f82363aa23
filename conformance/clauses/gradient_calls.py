"""gradients.strided, .alone, .interleaved, .repeated, .accumulate, .inputs-unchanged: the calls."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from ..calling import CandidateFailure, Forward, arguments
from ..candidate import Candidate
from ..declaration import PACKED
from ..differentiating import Gradients, Taped, as_returned
from ..inputs import Inputs
from ..layouts import LAYOUTS, STRIDED
from ..placing import whole_storage
from ..problem import Problem
from ..recipes import LIVELY
from ..registry import Finding, clause
from ..results import Violation
from ..space import Space
from ..subject import Subject
from ..weight_leaves import build_with_leaves
from ._gradients import (
    cannot_be_judged,
    output_gradient,
    records_gradients,
    with_full_rows,
)
from ._same_gradients import Asked, same_gradients
from ._vocabulary import identical

PLAIN = Space(mask="maybe", causal="maybe", values=LIVELY, share=0.15)
# What a sum, a transpose or a slice behind the answer hands back.
RETURNED = ("of a sum", *STRIDED)
GIVEN = (*STRIDED, "mixed")


@clause(
    "gradients.strided",
    level="MUST",
    sentence=(
        "Inputs, and a gradient of the answer, that lie in memory in another way (slices of a "
        "fused projection, transposes, one number expanded) give the same gradients."
    ),
    source="flash-attention#1046; xformers: grad_out of a sum has strides of zero",
    space=Space(mask="maybe", causal="maybe", values=LIVELY, share=0.25),
    applies=(records_gradients,),
)
def strided(subject: Subject, problem: Problem) -> Finding:
    """Other strides of the inputs, of the output gradient, or of both, against contiguous ones."""
    inputs = with_full_rows(subject, problem)
    if cannot_be_judged(subject, inputs):
        return Finding(binding=False)
    returned = RETURNED[problem.seed % len(RETURNED)]
    layout = GIVEN[problem.seed // len(RETURNED) % len(GIVEN)]
    upstream = output_gradient(subject, problem, inputs)
    if returned == "of a sum":
        upstream = torch.ones_like(upstream)
    first = _asked(subject, inputs, upstream)
    taped = subject.gradients.tape(inputs)
    told = f"a gradient of the answer that is not contiguous ({returned}) changes that of {{}}"
    backwards = same_gradients(subject, first, _pulled(taped, upstream, returned), told)
    if backwards.violation is not None:
        return backwards
    # A mask is one tensor, which cannot lie in several ways at once.
    of_mask = STRIDED[0] if layout == "mixed" else layout
    laid_out = inputs.replace(layout=layout, mask_layout=of_mask)
    if _refuses(subject, laid_out):
        return backwards  # another clause's matter
    other = subject.gradients.tape(laid_out)
    told = f"inputs that are not contiguous ({layout}) change the gradient of {{}}"
    return same_gradients(subject, first, other.pull(upstream), told)


def _refuses(subject: Subject, inputs: Inputs) -> bool:
    """Whether a candidate cannot answer some inputs, gradients apart."""
    with subject.recorded(None):
        try:
            subject.answer(inputs)
        except CandidateFailure:
            return True
    return False


def _asked(subject: Subject, inputs: Inputs, upstream: Tensor) -> Asked:
    taped = subject.gradients.tape(inputs)
    return Asked(inputs=inputs, upstream=upstream, found=subject.gradients.pull(taped, upstream))


def _pulled(taped: Taped, upstream: Tensor, layout: str) -> Gradients:
    """The gradients for an output gradient that lies in memory in some way."""
    plain = as_returned(upstream, taped)
    if layout == "of a sum":
        return taped.pull_as_given(torch.ones((), dtype=plain.dtype).to(plain).expand(plain.shape))
    if plain.dim() < len("LE") or plain.device.type != "cpu":
        return taped.pull_as_given(plain.mT.contiguous().mT)
    return taped.pull_as_given(LAYOUTS[layout](plain))


def _several_inputs(candidate: Candidate) -> str:
    declared = candidate.declaration
    if declared.inputs == "self" or PACKED.get(declared.layout) == ("qkv",):
        return "it takes one input"
    return ""


@clause(
    "gradients.alone",
    level="MUST",
    sentence="An input that alone requires a gradient gets the same as when all inputs do.",
    source="torch.autograd: ctx.needs_input_grad; frozen projections",
    space=PLAIN,
    applies=(records_gradients, _several_inputs),
)
def alone(subject: Subject, problem: Problem) -> Finding:
    """Each of the inputs alone, against all of them."""
    inputs = with_full_rows(subject, problem)
    if cannot_be_judged(subject, inputs):
        return Finding(binding=False)
    upstream = output_gradient(subject, problem, inputs)
    first = _asked(subject, inputs, upstream)
    wording = "the gradient of {} is another when no other input requires one"
    findings = []
    for number in range(len(subject.declaration.positional)):
        one = subject.gradients.tape(inputs, names=(f"input {number}",))
        found = subject.gradients.pull(one, upstream)
        findings.append(same_gradients(subject, first, found, wording))
    return next((found for found in findings if found.violation is not None), findings[0])


@clause(
    "gradients.interleaved",
    level="MUST",
    sentence="Calls made between a call and its backward pass do not change its gradients.",
    source="PEERS: state kept on the function instead of its context",
    space=PLAIN,
    applies=(records_gradients,),
)
def interleaved(subject: Subject, problem: Problem) -> Finding:
    """Two calls, then the backward passes of the first and of the second."""
    inputs = with_full_rows(subject, problem)
    later = with_full_rows(subject, problem.replace(seed=problem.seed + 1))
    later = later.replace(weights=inputs.weights)
    if cannot_be_judged(subject, inputs) or cannot_be_judged(subject, later):
        return Finding(binding=False)
    upstream = output_gradient(subject, problem, inputs)
    first = _asked(subject, inputs, upstream)
    forward = subject.forward(inputs)
    earlier = subject.gradients.tape(inputs, forward=forward)
    subject.gradients.tape(later, forward=forward)
    wording = "a call made before the backward pass of another changes its gradient of {}"
    return same_gradients(subject, first, subject.gradients.pull(earlier, upstream), wording)


@clause(
    "gradients.repeated",
    level="SHOULD",
    sentence="A backward pass that keeps its history gives the same gradients a second time.",
    source="torch.autograd: retain_graph",
    space=PLAIN,
    applies=(records_gradients,),
)
def repeated(subject: Subject, problem: Problem) -> Finding:
    """The same output gradient twice through one history."""
    inputs = with_full_rows(subject, problem)
    if cannot_be_judged(subject, inputs):
        return Finding(binding=False)
    upstream = output_gradient(subject, problem, inputs)
    taped = subject.gradients.tape(inputs)
    found = subject.gradients.pull(taped, upstream, again=True)
    first = Asked(inputs=inputs, upstream=upstream, found=found)
    wording = "a second backward pass through one history changes the gradient of {}"
    return same_gradients(subject, first, taped.pull(upstream, again=True), wording)


@clause(
    "gradients.accumulate",
    level="MUST",
    sentence="A backward pass adds to the gradients that are there: twice the same gives twice it.",
    source="torch.Tensor.backward: gradients are accumulated",
    space=PLAIN,
    counterfactual="gradients that are not zero",
    applies=(records_gradients,),
)
def accumulate(subject: Subject, problem: Problem) -> Finding:
    """Two calls with the same tensors, ``backward()`` after each, nothing cleared between."""
    inputs = with_full_rows(subject, problem)
    if cannot_be_judged(subject, inputs):
        return Finding(binding=False)
    upstream = output_gradient(subject, problem, inputs)
    forward, leaves = build_with_leaves(subject.candidate, inputs)
    once = _accumulated(subject, inputs, forward, upstream)
    both = dataclasses.replace(once, weights=leaves)
    first = Asked(inputs=inputs, upstream=upstream, found=_arrived(both))
    again = subject.gradients.tape(inputs, forward=forward, given=once.given)
    again.backward(as_returned(upstream, again))
    second = _arrived(both)
    wording = "two backward passes do not add up to twice the gradient of {}"
    finding = same_gradients(subject, first, second, wording, factor=2.0)
    some = any(bool(tensor.any()) for tensor in first.found.found.values())
    return dataclasses.replace(finding, binding=finding.binding and some)


def _accumulated(subject: Subject, inputs: Inputs, forward: Forward, upstream: Tensor) -> Taped:
    """A first call with its backward pass."""
    taped = subject.gradients.tape(inputs, forward=forward)
    taped.backward(as_returned(upstream, taped))
    return taped


def _arrived(taped: Taped) -> Gradients:
    """What the leaves hold by now, copied."""
    held = (None if leaf.grad is None else leaf.grad.clone() for leaf in taped.asking)
    return taped.gather(tuple(held))


@clause(
    "gradients.inputs-unchanged",
    level="MUST",
    sentence="A backward pass changes neither the inputs, nor the answer, nor the gradient of it.",
    source="PEERS: editing in place; kernels that reuse buffers",
    space=PLAIN,
    applies=(records_gradients,),
)
def inputs_unchanged(subject: Subject, problem: Problem) -> Finding:
    """Every tensor that the backward pass could reach, bit for bit with what lies beside it."""
    inputs = with_full_rows(subject, problem).replace(layout="between-canaries")
    upstream = output_gradient(subject, problem, inputs)
    taped = subject.gradients.tape(inputs, given=arguments(inputs))
    gradient = as_returned(upstream, taped).clone()
    held = dict(zip(subject.declaration.positional, taped.given[0], strict=False))
    held |= {name: each for name, each in taped.given[1].items() if isinstance(each, Tensor)}
    held |= {"answer": taped.returned, "gradient of the answer": gradient}
    before = {name: whole_storage(tensor).clone() for name, tensor in held.items()}
    taped.pull_as_given(gradient)
    changed = [
        name for name, tensor in held.items() if not identical(whole_storage(tensor), before[name])
    ]
    if not changed:
        return Finding()
    message = f"the backward pass changed the {' and the '.join(changed)} in place"
    return Finding(violation=Violation(kind="mutated", message=message, got=changed))
