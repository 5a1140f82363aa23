"""state.eval-deterministic, .state-dict, .train-agrees, .follows-to: what a module owes users."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from ..base.results import Violation
from ..calls.calling import CandidateFailure, build_forward, guarded
from ..calls.devices import forked_random
from ..declare.candidate import Candidate
from ..oracle.comparison import compare, moves
from ..oracle.oracle import Oracle
from ..problems.edges import edge_problems
from ..problems.inputs import Inputs
from ..problems.materialise import draw_weights, generator_for, in_dtype, materialise
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import Space
from ..tolerance import model
from ._vocabulary import identical, relate, same_unless_identical
from .registry import Finding, clause, requires, violated
from .subject import Subject

LAYERS = Space(kinds=("layer",), values=LIVELY)
NO_MODULE = "its forward is not a torch.nn.Module"


def _is_module(candidate: Candidate) -> str:
    """Build it once at the smallest size to see what the builder returns."""
    if candidate.kind != "layer":
        return "it speaks of layers"
    forward = _built(candidate)
    return "" if forward is None or isinstance(forward, nn.Module) else NO_MODULE


def _has_state(candidate: Candidate) -> str:
    """Whose state dict holds anything: a module may leave its weights to whoever builds it."""
    forward = _built(candidate)
    if isinstance(forward, nn.Module) and not forward.state_dict():
        return "its state dict is empty: it promises nothing about its weights"
    return ""


def _built(candidate: Candidate) -> object:
    """What the builder returns at the smallest size; None where the clause will show its error."""
    problem = edge_problems(candidate, LAYERS, dtype=candidate.declaration.dtypes[0])[0]
    try:
        return build_forward(candidate, materialise(problem, candidate))
    except CandidateFailure:
        return None


def _module(subject: Subject, inputs: Inputs) -> nn.Module:
    forward = subject.forward(inputs)
    if not isinstance(forward, nn.Module):
        raise CandidateFailure(Violation(kind="type", message=NO_MODULE))
    return forward


@clause(
    "state.eval-deterministic",
    sentence="In eval mode nothing is random, whatever mode the module was in before.",
    source="pytorch#124464, torchtune#1791: dropout active in eval",
    space=LAYERS,
    applies=(_is_module,),
    explained=False,
    of_repetition=True,
)
def eval_deterministic(subject: Subject, problem: Problem) -> Finding:
    """Two calls under different random seeds after train() and back to eval()."""
    inputs = subject.inputs(problem)
    module = _module(subject, inputs)
    with forked_random(subject.device):
        torch.manual_seed(problem.seed)
        module.train()
        module.eval()
        first = subject.call(module, inputs).output
        torch.manual_seed(problem.seed + 1)
        second = subject.call(module, inputs).output
    wording = "in eval mode two random seeds give two answers"
    return relate(subject, (inputs, first), (inputs, second), wording)


_draws_weights = requires(
    lambda c: c.draws_weights, "it brings its own weights: no second one can be built"
)


@clause(
    "state.state-dict",
    sentence="A module that loads another's state dict gives the other's answer.",
    source="torch.nn.Module.load_state_dict: the state dict holds the whole state",
    space=LAYERS,
    counterfactual="the answer with the weights from before loading",
    applies=(_draws_weights, _is_module, _has_state),
    explained=False,
)
def state_dict(subject: Subject, problem: Problem) -> Finding:
    """Two modules of other weights; the second, perhaps used before, loads the first's state."""
    inputs = subject.inputs(problem)
    module = _module(subject, inputs)
    drawn = draw_weights(problem, subject.declaration.semantics, generator_for(problem, 13))
    others = inputs.replace(weights=drawn)
    second = _module(subject, others)
    if problem.seed % 2:  # what a call derives from the weights must not outlive them
        subject.call(second, others)
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    guarded(second.load_state_dict, (state,), {}, "loading its own state dict")
    first_answer = subject.call(module, inputs).output
    second_answer = subject.call(second, inputs).output
    wording = "after loading the state dict the answer is another"
    return relate(
        subject, (inputs, first_answer), (inputs, second_answer), wording, counterfactual=others
    )


@clause(
    "state.follows-to",
    level="SHOULD",
    sentence="Everything a module computes with follows .to(dtype) and .to(device).",
    source="torch.nn.Module.to; document 000 keeps its scale as a plain tensor",
    space=LAYERS,
    needs_golden=True,
    applies=(_is_module,),
    explained=False,
)
def follows_to(subject: Subject, problem: Problem) -> Finding:
    """Moved to float64 it answers with float64 accuracy; moved to the meta device nothing stays."""
    inputs = subject.inputs(problem)
    module = _module(subject, inputs)
    stays = _left_behind(module)
    if stays:
        message = f"plain tensors stay behind after .to(device): {', '.join(stays)}"
        return violated("value", message, got=stays)
    wide = _in_float64(inputs)
    moved = guarded(copy.deepcopy(module).to, (torch.float64,), {}, "moving to float64")
    known = Oracle(subject.declaration, "float64").answer(wide)
    answer = subject.call(moved, wide).output
    if answer.dtype != torch.float64:
        message = f"after .to(torch.float64) the output has dtype {answer.dtype}"
        return violated("dtype", message, got=str(answer.dtype))
    wording = "after .to(torch.float64) something still has another dtype: the answer is inexact"
    agreement = compare(answer, known.output, known.bound, judged=known.judged, wording=wording)
    if moves(known.output, answer, subject.golden(inputs).bound, known.judged):
        # Wrong by more than the narrow dtype explains: another clause's mistake, not this one's.
        return Finding(binding=False)
    return Finding.of(agreement)


def _in_float64(inputs: Inputs) -> Inputs:
    wide = inputs.with_tokens(
        query=inputs.query.double(),
        key=inputs.key.double(),
        value=inputs.value.double(),
    )
    return wide.replace(weights=in_dtype(inputs.weights, torch.float64))


def _left_behind(module: nn.Module) -> list[str]:
    """Plain tensor attributes: neither parameter nor buffer, so ``.to`` does not see them."""
    return [
        f"{prefix}.{name}" if prefix else name
        for prefix, part in module.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, Tensor)
    ]


@clause(
    "state.train-agrees",
    sentence="A module that drops nothing in training mode gives the answer of eval mode there.",
    source="pytorch#97408, #97128, PR#190486: a fast path that is taken in eval mode only",
    space=Space(kinds=("layer",), values=LIVELY, mask="maybe", causal="maybe", share=0.5),
    counterfactual="a module without dropout in training",
    applies=(_is_module,),
    explained=False,
    subtle=True,
)
def train_agrees(subject: Subject, problem: Problem) -> Finding:
    """Two calls in training mode, more before anything is said; alike, nothing was dropped."""
    inputs = subject.inputs(problem)
    module = _module(subject, inputs)
    evaluated = subject.call(module, inputs).output
    try:
        with forked_random(subject.device):
            torch.manual_seed(problem.seed)
            first = subject.call(module.train(), inputs).output
            torch.manual_seed(problem.seed + 1)
            second = subject.call(module, inputs).output
            if not identical(first, second):
                return Finding(binding=False)
            wording = "in training mode, where nothing is dropped, the answer is another"
            found = same_unless_identical(subject, (inputs, evaluated), (inputs, first), wording)
            if found.violation is not None and _drops_after_all(subject, module, inputs, first):
                return Finding(binding=False)
            return found
    finally:
        module.eval()


def _drops_after_all(subject: Subject, module: nn.Module, inputs: Inputs, answer: Tensor) -> bool:
    """Whether one of many more calls answers otherwise: one weight is dropped twice by chance."""
    with subject.recorded(None):
        return any(
            not identical(subject.call(module, inputs).output, answer)
            for _ in range(model.DROPOUT_CALLS)
        )
