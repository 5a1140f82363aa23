"""state.eval-deterministic, .state-dict, .follows-to, .train-agrees, .dropout: modules."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor, nn

from ..base.results import Violation
from ..calls.calling import CandidateFailure, build_forward, guarded
from ..calls.devices import forked_random, seed_random
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
from .judging import identical, order_is_free, relate, same_unless_identical
from .registry import OF_MODULES, Finding, clause, declares, requires, violated
from .subject import Subject

LAYERS = Space(kinds=("layer",), values=LIVELY)
NO_MODULE = "its forward is not a torch.nn.Module"


def _is_module(candidate: Candidate) -> str:
    """Why its forward is not a module, or "".

    It is built once at the smallest size.
    """
    if candidate.kind != "layer":
        return "it speaks of layers"
    if candidate.isolated:
        return OF_MODULES
    forward = _built(candidate)
    return "" if forward is None or isinstance(forward, nn.Module) else NO_MODULE


def _has_state(candidate: Candidate) -> str:
    """Why a module's state dict holds nothing, or ""."""
    forward = _built(candidate)
    if isinstance(forward, nn.Module) and not forward.state_dict():
        return "its state dict is empty: it promises nothing about its weights"
    return ""


def _built(candidate: Candidate) -> object:
    """The builder's result at the smallest size; None without a builder, or if it raises."""
    problems = edge_problems(candidate, LAYERS, dtype=candidate.declaration.dtypes[0], most=1)
    if not problems:
        return None
    problem = problems[0]
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
        seed_random(subject.device, problem.seed)
        module.train()
        module.eval()
        first = subject.call(module, inputs).output
        seed_random(subject.device, problem.seed + 1)
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
    """Two modules of different weights; the second, perhaps used, loads the first's state."""
    inputs = subject.inputs(problem)
    module = _module(subject, inputs)
    drawn = draw_weights(problem, subject.declaration.semantics, generator_for(problem, 13))
    others = inputs.replace(weights=drawn)
    second = _module(subject, others)
    if problem.seed % 2:  # a call's results from old weights must not outlive them
        subject.call(second, others)
        if subject.declaration.cache is not None:  # whose slots a first call may make
            subject.call(module, inputs)
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
    source="torch.nn.Module.to moves parameters and buffers, plain tensors it leaves",
    space=LAYERS,
    needs_golden=True,
    applies=(_is_module,),
    explained=False,
)
def follows_to(subject: Subject, problem: Problem) -> Finding:
    """Moved to float64 it answers with float64 accuracy, and no plain tensor stays behind."""
    inputs = subject.inputs(problem)
    module = _module(subject, inputs)
    stays = _left_behind(module)
    if stays:
        message = f"plain tensors stay behind after .to(device): {', '.join(stays)}"
        return violated("value", message, got=stays)
    wide = _in_float64(inputs)
    try:  # the module's owner keeps it unchanged
        copied = guarded(copy.deepcopy, (module,), {}, "being copied")
    except CandidateFailure as failure:
        reason = f"a copy of it cannot be moved: {failure.violation.message}"
        return Finding(inapplicable=reason)
    moved = guarded(copied.to, (torch.float64,), {}, "moving to float64")
    expected = Oracle(subject.declaration, "float64").answer(wide)
    answer = subject.call(moved, wide).output
    if answer.dtype != torch.float64:
        message = f"after .to(torch.float64) the output has dtype {answer.dtype}"
        return violated("dtype", message, got=str(answer.dtype))
    wording = "after .to(torch.float64) something still has another dtype: the answer is inexact"
    agreement = compare(
        answer, expected.output, expected.bound, judged=expected.judged, wording=wording
    )
    if moves(expected.output, answer, subject.golden(inputs).bound, expected.judged):
        # Wrong by more than the narrow dtype explains: another clause's mistake, not this one's.
        return Finding(binding=False)
    return Finding.of(agreement)


def _in_float64(inputs: Inputs) -> Inputs:
    wide = inputs.map_tokens(Tensor.double)
    return wide.replace(weights=in_dtype(inputs.weights, torch.float64))


def _left_behind(module: nn.Module) -> list[str]:
    """Plain tensor attributes: neither parameter nor buffer, hence unseen by ``.to``."""
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
    """Two calls in training mode: if they and many more agree, nothing was dropped."""
    inputs = subject.inputs(problem)
    module = _module(subject, inputs)
    evaluated = subject.call(module, inputs).output
    try:
        with forked_random(subject.device):
            seed_random(subject.device, problem.seed)
            first = subject.call(module.train(), inputs).output
            seed_random(subject.device, problem.seed + 1)
            second = subject.call(module, inputs).output
            if not identical(first, second):
                return Finding(binding=False)
            wording = "in training mode, where nothing is dropped, the answer is another"
            finding = same_unless_identical(subject, (inputs, evaluated), (inputs, first), wording)
            if finding.violation is not None and _drops_after_all(subject, module, inputs, first):
                return Finding(binding=False)
            return finding
    finally:
        module.eval()


def _drops_after_all(subject: Subject, module: nn.Module, inputs: Inputs, answer: Tensor) -> bool:
    """Whether one of many more calls answers otherwise: one weight is dropped twice by chance."""
    with subject.recorded(None):
        return any(
            not identical(subject.call(module, inputs).output, answer)
            for _ in range(model.DROPOUT_CALLS)
        )


PROBABILITIES = (0.5, 0.25, 0.1)
# Two calls keep equally many of a row's 8 or more keys with a chance of at most 0.36 (for a
# probability of 0.1), and of all the keys of this many rows with one below DROPOUT_FALSE_ALARM.
EQUALLY_MANY: Final = 0.36
ROWS_THAT_DIFFER = 30


# Many equal keys, so that a row's kept keys can be counted.
COUNTED = Space(
    values=("tied-keys",), least=(("key_length", 8), ("query_length", 8), ("num_heads", 1))
)


_offers_dropout = declares("dropout", "no dropout keyword is declared")


@clause(
    "state.dropout",
    sentence=(
        "Dropout zeroes single attention weights, independently and with the given probability, "
        "and divides the others by one minus it."
    ),
    source="Srivastava et al. 2014; torch.nn.functional.dropout; pytorch#42929",
    space=COUNTED,
    needs_golden=True,
    counterfactual="no dropout at all",
    applies=(_offers_dropout, order_is_free),
    explained=False,
    subtle=True,
)
def dropout(subject: Subject, problem: Problem) -> Finding:
    """Equal keys and values: each row then returns (kept keys) / (keys * (1 - p)) of the value."""
    probability = PROBABILITIES[problem.seed % len(PROBABILITIES)]
    inputs = equal_tokens(subject.inputs(problem)).replace(dropout=probability)
    forward = subject.forward(inputs)
    with forked_random(subject.device):
        seed_random(subject.device, problem.seed)
        answer = subject.call(forward, inputs).output.double()
        again = subject.call(forward, inputs).output.double()
    plain = inputs.replace(dropout=None)
    shares, slack = shares_of(subject, plain, answer)
    if shares is None:
        return Finding(binding=False)
    keys = inputs.geometry.key_length
    counts = shares * keys * (1.0 - probability)
    slack = slack * keys * (1.0 - probability)
    if bool((slack > model.COUNTABLE).any()):  # kept keys could not be counted
        return Finding(binding=False)
    rows = _of_rows(counts).numel()
    if _all_sum_to_one(counts, slack, keys, probability):
        violation: Violation | None = _without_loss(subject, problem, probability, rows)
    else:
        violation = _judge(counts, slack, keys, probability)
    shows = 2.0 * (1.0 - probability) ** (rows * keys) < model.DROPOUT_FALSE_ALARM
    drawn = _drawn_apart(_of_rows(counts).round()).numel()
    if violation is None and drawn >= ROWS_THAT_DIFFER and torch.equal(answer, again):
        message = "two calls drop exactly the same weights: nothing is drawn anew"
        violation = Violation(kind="value", message=message)
    return Finding(binding=shows, violation=violation)


def equal_tokens(inputs: Inputs) -> Inputs:
    """All keys equal and all values equal: weights are uniform, and only dropout parts the rows."""
    key = inputs.key[..., :1, :].expand(inputs.key.shape).contiguous()
    value = inputs.value[..., :1, :].expand(inputs.value.shape).contiguous()
    return inputs.with_tokens(key=key, value=value)


def shares_of(subject: Subject, plain: Inputs, answer: Tensor) -> tuple[Tensor | None, Tensor]:
    """The multiple of the common value returned in each row and head, and its error.

    A core's channels must agree on the multiple; for a layer the output projection is inverted.
    """
    expected = subject.golden(plain)
    if not plain.is_layer:
        unit = expected.output[..., :1, :]
        share = answer / unit
        slack = model.DROPOUT_SLACK * expected.bound / unit.abs() + torch.zeros_like(share)
        return share, slack
    return _solved_shares(plain, expected.core.value, expected.bound, answer)


def _solved_shares(
    plain: Inputs, value: Tensor, bound: Tensor, answer: Tensor
) -> tuple[Tensor | None, Tensor]:
    weights = plain.weights
    if weights is None or weights.o is None:
        return None, bound
    batch, heads, size = (
        plain.geometry.batch,
        plain.geometry.num_heads,
        plain.geometry.value_head_size,
    )
    blocks = weights.o.double().reshape(-1, heads, size)
    columns = torch.einsum("ehd,bhd->beh", blocks, value[:, :, 0, :])
    singular = torch.linalg.svdvals(columns)
    if singular.shape[-1] < heads or _nearly_singular(singular):
        return None, bound
    offset = 0.0 if weights.o_bias is None else weights.o_bias.double()
    shares = torch.linalg.lstsq(columns, (answer - offset).transpose(1, 2)).solution
    reach = bound.square().sum(dim=-1).sqrt() / singular[..., -1].reshape(batch, 1)
    slack = model.DROPOUT_SLACK * reach.unsqueeze(1).expand(shares.shape)
    residual = (columns @ shares - (answer - offset).transpose(1, 2)).abs().amax()
    if float(residual) > model.DROPOUT_SLACK * float(bound.amax()) * math.sqrt(heads):
        # No mixture of whole heads gives this answer: channels were dropped, not weights.
        return torch.full_like(shares, math.nan), slack
    return shares, slack


def _nearly_singular(values: Tensor) -> bool:
    return float(values.min()) < model.SMALLEST_SINGULAR_VALUE * float(values.max())


def _all_sum_to_one(counts: Tensor, slack: Tensor, keys: int, probability: float) -> bool:
    """Whether every row returns the common value itself, and chance does not explain it."""
    apart = _of_rows(counts)
    left = keys * (1.0 - probability)
    if bool(((counts - left).abs() > slack).any()):
        return False
    kept = round(left)
    chance = math.comb(keys, kept) * (1.0 - probability) ** kept * probability ** (keys - kept)
    return kept != left or chance ** apart.numel() < model.DROPOUT_FALSE_ALARM


def _without_loss(subject: Subject, problem: Problem, probability: float, rows: int) -> Violation:
    """The violation of rows that return the whole common value; a second call tells the cause.

    The second call has unequal keys and values: its answer shows whether dropout acts at all.
    """
    inputs = subject.inputs(problem.replace(values="normal", overrides=None, dropout=None))
    plain = subject.golden(inputs)
    forward = subject.forward(inputs)
    with forked_random(subject.device):
        seed_random(subject.device, problem.seed)
        answer = subject.call(forward, inputs.replace(dropout=probability)).output.double()
    message = (
        f"each of {rows} rows returns the common value of equal keys whole with a dropout of "
        f"{probability:g}, as without: "
    )
    if bool((((answer - plain.output).abs() <= plain.bound) | ~plain.judged).all()):
        message += "nothing is dropped"
    else:
        message += (
            "its weights sum to one, though other keys and values show that something is dropped: "
            "before the softmax, or the weights are divided by their sum after it"
        )
    return Violation(kind="value", message=message, got=1.0)


def _judge(counts: Tensor, slack: Tensor, keys: int, probability: float) -> Violation | None:
    apart = _of_rows(counts)
    same = (counts - apart).abs() <= 2.0 * slack
    if not bool(same.all()):
        return Violation(
            kind="value",
            message=(
                "channels of one row were dropped apart: dropout acts on the output, not the "
                "weights"
            ),
        )
    whole = (counts - counts.round()).abs() <= slack
    countable = whole & (counts <= keys + slack)
    if not bool(countable.all()):
        got = float(counts[~countable][0])
        message = (
            f"a row returns {got:.6g} of {keys} keys after undoing 1 / (1 - {probability}): "
            f"{'more than there are' if bool(whole.all()) else 'not a whole number'}"
            f"{_other_factor(counts, slack, keys, probability, got)}"
        )
        return Violation(kind="value", message=message, got=got)
    apart, queries = apart.round(), apart.shape[2]
    if queries > 1 and bool((apart == apart[:, :, :1]).all()):
        further = apart.numel() * (queries - 1) // queries
        if EQUALLY_MANY**further < model.DROPOUT_FALSE_ALARM:
            message = (
                f"all {queries} queries of an item and head lose equally many weights: one row of "
                "weights to drop is drawn for all of them"
            )
            return Violation(kind="value", message=message)
    apart = _drawn_apart(apart)
    kept, total = int(apart.sum()), apart.numel() * keys
    if _tail(kept, total, 1.0 - probability) < model.DROPOUT_FALSE_ALARM:
        message = (
            f"{kept} of {total} weights were kept where {1.0 - probability:g} of them should be "
            f"(chance below {model.DROPOUT_FALSE_ALARM:g})"
        )
        return Violation(
            kind="value", message=message, got=kept, expected=total * (1.0 - probability)
        )
    return _judge_independence(apart, keys, probability)


def _of_rows(counts: Tensor) -> Tensor:
    """The count of each row and head: for a core, of the first channel."""
    return counts[..., :1] if counts.dim() == len("BHLD") else counts


def _drawn_apart(counts: Tensor) -> Tensor:
    """Reduce the counts to rows with their own draw: equal items, heads or queries count once.

    Flax draws the dropped weights once for all items and heads by default; rows that are equal by
    chance are no loss.
    """
    for axis in range(len("BHL")):
        first = counts.narrow(axis, 0, 1) if counts.shape[axis] else counts
        counts = first if bool((counts == first).all()) else counts
    return counts


# What weights that are kept are multiplied by in place of 1 / (1 - p): words and number.
_FACTORS: Final[tuple[tuple[str, Callable[[float], float]], ...]] = (
    ("are not divided by one minus the probability", lambda _p: 1.0),
    ("are divided by the probability, not by one minus it", lambda p: 1.0 / p),
    ("are divided twice by one minus the probability", lambda p: (1.0 - p) ** -2),
    ("are multiplied by one minus the probability, not divided by it", lambda p: 1.0 - p),
)


def _other_factor(counts: Tensor, slack: Tensor, keys: int, probability: float, got: float) -> str:
    """The only factor by which every row returns a whole number of keys, in words, or "".

    The words hold the number for a row that returned ``got`` keys.
    """
    words = []
    for text, factor in _FACTORS:
        undo = 1.0 / ((1.0 - probability) * factor(probability))
        undone, room = counts * undo, slack * undo
        fits = ((undone - undone.round()).abs() <= room) & (undone <= keys + room)
        if bool(fits.all()) and float(room.max()) < model.COUNTABLE:
            words.append(f", and {got * undo:.0f} if weights {text}")
    return words[0] if len(words) == 1 else ""


def _judge_independence(counts: Tensor, keys: int, probability: float) -> Violation | None:
    """Rows that lose all or none of their keys are rare if weights are dropped independently."""
    rows = counts.numel()
    extreme = int(((counts == 0) | (counts == keys)).sum())
    chance = probability**keys + (1.0 - probability) ** keys
    if extreme <= rows * chance or _tail(extreme, rows, chance) >= model.DROPOUT_FALSE_ALARM:
        return None
    message = (
        f"{extreme} of {rows} rows lost all of their {keys} weights or none (chance below "
        f"{model.DROPOUT_FALSE_ALARM:g}): weights are not dropped one by one"
    )
    return Violation(kind="value", message=message, got=extreme, expected=rows * chance)


def _tail(kept: int, total: int, chance: float) -> float:
    """Bounds the probability of a count this far off: Chernoff's, two exp(-N KL(k/N, chance))."""
    share = min(max(kept / total, 0.0), 1.0)
    divergence = 0.0
    if share > 0.0:
        divergence += share * math.log(share / chance)
    if share < 1.0:
        divergence += (1.0 - share) * math.log((1.0 - share) / (1.0 - chance))
    return 2.0 * math.exp(-total * divergence)
