"""gradients.strided, .shared, .alone, .interleaved and others: ways to call and differentiate."""

from __future__ import annotations

import dataclasses
from typing import Final

import torch
from torch import Tensor

from ..calls.calling import CandidateFailure, Forward, arguments
from ..calls.devices import whole_storage
from ..calls.differentiating import INPUT_NAMES, Gradients, Taped, as_returned
from ..calls.weight_leaves import build_with_leaves
from ..declare.candidate import Candidate
from ..oracle.comparison import compare, moves
from ..problems.inputs import Inputs
from ..problems.materialise import generator_for
from ..problems.memory_layouts import MEMORY_LAYOUTS, STRIDED
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import Space
from .judging import all_of, identical
from .judging_gradients import (
    GradientRun,
    axes_of,
    cannot_be_judged,
    first_wrong,
    gradient_bounds,
    inputs_for_gradients,
    largest_everywhere,
    output_gradient,
    records_gradients,
    same_gradients,
    with_full_rows,
)
from .registry import Finding, clause, requires, violated
from .shape import (
    ONE_SHAPE,
    separate_inputs,
    without_batch,
    without_items,
    without_length,
    without_queries,
)
from .subject import Subject

PLAIN = Space(mask="maybe", causal="maybe", values=LIVELY, share=0.15)
# How the gradient that a sum, a transpose or a slice of the answer hands back lies in memory.
GRADIENT_LAYOUTS = ("of a sum", *STRIDED)
INPUT_LAYOUTS = (*STRIDED, "mixed", "expanded")
# The number of layouts that each problem tries.
LAYOUTS_TRIED = 3


@clause(
    "gradients.strided",
    sentence=(
        "Inputs, and a gradient of the answer, that lie in memory in another way (slices of a "
        "fused projection, transposes, one number expanded) give the same gradients."
    ),
    source="flash-attention#1046, pytorch#133671; xformers: grad_out of a sum has strides of zero",
    space=Space(mask="maybe", causal="maybe", values=LIVELY, share=0.25),
    applies=(records_gradients,),
)
def strided(subject: Subject, problem: Problem) -> Finding:
    """Strided inputs, output gradients, or both, give the gradients of contiguous ones."""
    inputs = with_full_rows(subject, problem)
    if cannot_be_judged(subject, inputs):
        return Finding(binding=False)
    count = len(GRADIENT_LAYOUTS) * len(INPUT_LAYOUTS)
    drawn = torch.randint(count, (1,), generator=generator_for(problem, 38))
    start, chosen = divmod(int(drawn), len(GRADIENT_LAYOUTS))
    returned = GRADIENT_LAYOUTS[chosen]
    upstream = output_gradient(subject, problem, inputs)
    if returned == "of a sum":
        upstream = torch.ones_like(upstream)
    first = _gradient_run(subject, inputs, upstream)
    taped = subject.gradients.tape(inputs)
    other = _gradients_in_layout(taped, upstream, returned)
    wording = f"a gradient of the answer that is not contiguous ({returned}) changes that of {{}}"
    findings = [same_gradients(subject, first, other, wording)]
    apart = not inputs.batched or not inputs.head_layout.is_own  # no axis holds the items alone
    layouts = [layout for layout in INPUT_LAYOUTS if layout != "expanded" or not apart]
    for number in range(start, start + LAYOUTS_TRIED):
        layout = layouts[number % len(layouts)]
        run = _of_equal_items(subject, first) if layout == "expanded" else first
        # A mask is one tensor and has one layout.
        of_mask = STRIDED[0] if layout in ("mixed", "expanded") else layout
        laid_out = run.inputs.replace(layout=layout, mask_layout=of_mask)
        if not subject.answers(laid_out):
            continue  # another clause judges a refusal
        taped = subject.gradients.tape(laid_out)
        wording = f"inputs that are not contiguous ({layout}) change the gradient of {{}}"
        findings.append(same_gradients(subject, run, taped.pull(upstream), wording))
    return all_of(findings)


def _of_equal_items(subject: Subject, run: GradientRun) -> GradientRun:
    """A run for inputs whose items all equal the first, which a stride of zero can hold."""
    equal = run.inputs.map_tokens(lambda tokens: tokens[:1].expand(tokens.shape).contiguous())
    return _gradient_run(subject, equal, run.upstream)


def _gradient_run(subject: Subject, inputs: Inputs, upstream: Tensor) -> GradientRun:
    taped = subject.gradients.tape(inputs)
    return GradientRun(
        inputs=inputs, upstream=upstream, gradients=subject.gradients.pull(taped, upstream)
    )


def _gradients_in_layout(taped: Taped, upstream: Tensor, layout: str) -> Gradients:
    plain = as_returned(upstream, taped)
    if layout == "of a sum":
        return taped.pull_as_returned(
            torch.ones((), dtype=plain.dtype).to(plain).expand(plain.shape)
        )
    if plain.dim() < len("LE") or plain.device.type != "cpu":
        return taped.pull_as_returned(plain.mT.contiguous().mT)
    return taped.pull_as_returned(MEMORY_LAYOUTS[layout](plain))


@clause(
    "gradients.shared",
    sentence=(
        "One tensor that is key and value, or query, key and value, gets the sum of their "
        "gradients."
    ),
    source="torch.autograd: gradients of one tensor are added up; xformers#456: storage in common",
    space=Space(mask="maybe", causal="maybe", values=LIVELY, equal=ONE_SHAPE, share=0.15),
    counterfactual="a gradient of the key that is lost",
    applies=(records_gradients, separate_inputs),
    subtle=True,
)
def shared(subject: Subject, problem: Problem) -> Finding:
    """The gradient of one tensor in several roles, against the sum over equal copies."""
    inputs = with_full_rows(subject, problem)
    key, query = inputs.key, inputs.query
    if inputs.value.shape != key.shape or cannot_be_judged(subject, inputs):
        return Finding(binding=False)
    if query.shape == key.shape and problem.seed % 2 == 0:
        query = key
    copies = inputs.with_tokens(query=query, key=key, value=key)
    taped = subject.gradients.tape(copies.replace(shared=True))
    positional = zip(INPUT_NAMES["separate"], taped.arguments[0], strict=True)
    names = [name for name, tensor in positional if tensor is taped.arguments[0][-1]]
    if len(names) == 1:  # its arguments are different views
        return Finding(inapplicable="its inputs cannot be one object")
    upstream = output_gradient(subject, problem, copies)
    apart = _gradient_run(subject, copies, upstream)
    bounds = gradient_bounds(subject, apart)
    if not bounds:
        return Finding(binding=False)
    gradient = taped.pull(upstream).by_name["value"]
    parts = [apart.gradients.by_name[name].double() for name in names]
    summed = torch.stack(parts).sum(0)
    sizes = torch.stack(parts).abs().sum(0)
    rounding = len(parts) * torch.finfo(key.dtype).eps * sizes
    allowed = 2.0 * torch.stack([bounds[name] for name in names]).sum(0) + rounding
    agreement = compare(
        gradient,
        summed,
        largest_everywhere(allowed),
        wording=f"one tensor that is {' and '.join(names)} does not get the sum of their gradients",
        both_answers=True,
        axes=axes_of("key", copies),
    )
    binding = moves(summed, summed - apart.gradients.by_name["key"].double(), allowed)
    return Finding.of(agreement, binding=binding)


def _several_inputs(candidate: Candidate) -> str:
    declared = candidate.declaration
    if declared.inputs == "self" or len(declared.head_layout.inputs) == 1:
        return "it takes one input"
    return ""


@clause(
    "gradients.alone",
    sentence="An input that alone requires a gradient gets the same as when all inputs do.",
    source="torch.autograd: ctx.needs_input_grad; frozen projections",
    space=PLAIN,
    applies=(records_gradients, _several_inputs),
)
def alone(subject: Subject, problem: Problem) -> Finding:
    """The gradient of each input alone, against the gradients of all inputs together."""
    inputs = with_full_rows(subject, problem)
    if cannot_be_judged(subject, inputs):
        return Finding(binding=False)
    upstream = output_gradient(subject, problem, inputs)
    first = _gradient_run(subject, inputs, upstream)
    wording = "the gradient of {} is another when no other input requires one"
    findings = []
    for number in range(len(subject.declaration.positional)):
        taped = subject.gradients.tape(inputs, names=(f"input {number}",))
        gradients = subject.gradients.pull(taped, upstream)
        findings.append(same_gradients(subject, first, gradients, wording))
    return next((finding for finding in findings if finding.violation is not None), findings[0])


@clause(
    "gradients.interleaved",
    sentence="Calls made between a call and its backward pass do not change its gradients.",
    source="torch.autograd.Function: what backward needs is kept on ctx, one a call",
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
    first = _gradient_run(subject, inputs, upstream)
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
    """Pull one output gradient twice through one history."""
    inputs = with_full_rows(subject, problem)
    if cannot_be_judged(subject, inputs):
        return Finding(binding=False)
    upstream = output_gradient(subject, problem, inputs)
    taped = subject.gradients.tape(inputs)
    gradients = subject.gradients.pull(taped, upstream, again=True)
    first = GradientRun(inputs=inputs, upstream=upstream, gradients=gradients)
    wording = "a second backward pass through one history changes the gradient of {}"
    return same_gradients(subject, first, taped.pull(upstream, again=True), wording)


_keeps_no_call: Final = requires(
    lambda c: c.declaration.cache is None or not c.declaration.cache.is_within,
    "the tensors in which it keeps its cache belong to the call before",
)


@clause(
    "gradients.accumulate",
    sentence="A backward pass adds to the gradients that are there: twice the same gives twice it.",
    source="torch.Tensor.backward: gradients are accumulated",
    space=PLAIN,
    counterfactual="gradients that are not zero",
    applies=(records_gradients, _keeps_no_call),
)
def accumulate(subject: Subject, problem: Problem) -> Finding:
    """Two calls with the same tensors, ``backward()`` after each, gradients kept in between."""
    inputs = with_full_rows(subject, problem)
    if cannot_be_judged(subject, inputs):
        return Finding(binding=False)
    upstream = output_gradient(subject, problem, inputs)
    forward, leaves = build_with_leaves(subject.candidate, inputs)
    once = _accumulated(subject, inputs, forward, upstream)
    both = dataclasses.replace(once, weights=leaves)
    first = GradientRun(inputs=inputs, upstream=upstream, gradients=_gradients_of_leaves(both))
    again = subject.gradients.tape(inputs, forward=forward, call_arguments=once.arguments)
    again.backward(as_returned(upstream, again))
    second = _gradients_of_leaves(both)
    wording = "two backward passes do not add up to twice the gradient of {}"
    finding = same_gradients(subject, first, second, wording, factor=2.0)
    some = any(bool(tensor.any()) for tensor in first.gradients.by_name.values())
    return finding.only_if(some)


def _accumulated(subject: Subject, inputs: Inputs, forward: Forward, upstream: Tensor) -> Taped:
    taped = subject.gradients.tape(inputs, forward=forward)
    taped.backward(as_returned(upstream, taped))
    return taped


def _gradients_of_leaves(taped: Taped) -> Gradients:
    held = (None if leaf.grad is None else leaf.grad.clone() for leaf in taped.all_leaves)
    return taped.gather(tuple(held))


@clause(
    "gradients.inputs-unchanged",
    sentence="A backward pass changes neither the inputs, nor the answer, nor the gradient of it.",
    source="by definition: autograd hands these tensors to others, too; kernels reuse buffers",
    space=PLAIN,
    applies=(records_gradients,),
)
def inputs_unchanged(subject: Subject, problem: Problem) -> Finding:
    """Compare all tensors of the backward pass, and the memory around them, bit for bit."""
    inputs = with_full_rows(subject, problem).replace(layout="between-canaries")
    upstream = output_gradient(subject, problem, inputs)
    taped = subject.gradients.tape(inputs, call_arguments=arguments(inputs))
    gradient = as_returned(upstream, taped).clone()
    tensors = dict(zip(subject.declaration.positional, taped.arguments[0], strict=False))
    tensors |= {
        name: value for name, value in taped.arguments[1].items() if isinstance(value, Tensor)
    }
    tensors |= {"answer": taped.returned, "gradient of the answer": gradient}
    before = {name: whole_storage(tensor).clone() for name, tensor in tensors.items()}
    taped.pull_as_returned(gradient)
    changed = [
        name
        for name, tensor in tensors.items()
        if not identical(whole_storage(tensor), before[name])
    ]
    if not changed:
        return Finding()
    message = f"the backward pass changed the {' and the '.join(changed)} in place"
    return violated("mutated", message, got=changed)


def _sizes_are_free(candidate: Candidate) -> str:
    """Why neither the batch nor the queries can be empty, or ""."""
    return without_batch(candidate) and without_length(candidate)


@clause(
    "gradients.no-queries",
    level={"core": "MUST", "layer": "SHOULD"},
    sentence=(
        "Where there are no queries, or no items, the backward pass runs, and gives zeros to keys, "
        "values and weights."
    ),
    source="flash-attention#2776, #2421, pytorch#195813: crashes, and memory that nobody wrote to",
    space=Space(share=0.1),
    applies=(records_gradients, _sizes_are_free),
)
def no_queries(subject: Subject, problem: Problem) -> Finding:
    """No queries (no tokens at all where query and key are one), or an empty batch."""
    drawn = inputs_for_gradients(subject, problem)
    by_batch = bool(without_length(subject.candidate)) or (
        problem.seed % 2 == 1 and not without_batch(subject.candidate)
    )
    inputs = without_items(drawn) if by_batch else without_queries(subject.candidate, drawn)
    if not subject.answers(inputs):
        reason = "it does not answer without queries"  # another clause judges a refusal
        return Finding(inapplicable=reason)
    nothing = torch.zeros(inputs.output_shape, dtype=inputs.query.dtype)
    try:
        gradients = subject.gradients.of(inputs, nothing)
    except CandidateFailure as failure:
        if failure.violation.kind == "type":
            return Finding()  # an answer without elements need have no history
        raise
    wording = "without queries {} gets a gradient"
    return Finding(violation=first_wrong(gradients.by_name, torch.zeros_like, inputs, wording))
