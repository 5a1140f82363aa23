"""state.dropout: weights are dropped, not channels, and what is left is rescaled."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..base.results import Violation
from ..calls.devices import forked_random
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from ..problems.space import Space
from ..tolerance import model
from ._vocabulary import order_is_free
from .registry import Finding, clause, declares
from .subject import Subject

PROBABILITIES = (0.5, 0.25, 0.1)
# Two calls keep equally many of a row's 8 or more keys with a chance of at most 0.36 (for a
# probability of 0.1), and of all the keys of this many rows with one below DROPOUT_FALSE_ALARM.
ROWS_THAT_DIFFER = 30


# Many equal keys: what is kept of a row can be counted.
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
        torch.manual_seed(problem.seed)
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
    violation = _judge(counts, slack, keys, probability)
    rows = counts[..., :1].numel() if counts.dim() == len("BHLD") else counts.numel()
    seen = 2.0 * (1.0 - probability) ** (rows * keys) < model.DROPOUT_FALSE_ALARM
    if violation is None and seen and rows >= ROWS_THAT_DIFFER and torch.equal(answer, again):
        message = "two calls drop exactly the same weights: nothing is drawn anew"
        violation = Violation(kind="value", message=message)
    return Finding(binding=seen, violation=violation)


def equal_tokens(inputs: Inputs) -> Inputs:
    """All keys equal and all values equal: weights are uniform, and only dropout parts the rows."""
    key = inputs.key[..., :1, :].expand(inputs.key.shape).contiguous()
    value = inputs.value[..., :1, :].expand(inputs.value.shape).contiguous()
    return inputs.with_tokens(key=key, value=value)


def shares_of(subject: Subject, plain: Inputs, answer: Tensor) -> tuple[Tensor | None, Tensor]:
    """What each row and head returned, in units of the common value, and how exact that is.

    A core's channels must agree on it; a layer's are solved for through the output projection.
    """
    known = subject.golden(plain)
    if not plain.is_layer:
        unit = known.output[..., :1, :]
        share = answer / unit
        slack = model.DROPOUT_SLACK * known.bound / unit.abs() + torch.zeros_like(share)
        return share, slack
    return _solved_shares(plain, known.core.value, known.bound, answer)


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


def _judge(counts: Tensor, slack: Tensor, keys: int, probability: float) -> Violation | None:
    apart = counts[..., :1] if counts.dim() == len("BHLD") else counts
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
    if not bool(whole.all()):
        got = float(counts[~whole][0])
        message = (
            f"a row returns {got:.6g} of {keys} kept keys after undoing 1 / (1 - {probability}): "
            "not a whole number, so weights are not divided by one minus the probability"
        )
        return Violation(kind="value", message=message, got=got)
    kept = int(apart.round().sum())
    total = apart.numel() * keys
    if _tail(kept, total, 1.0 - probability) < model.DROPOUT_FALSE_ALARM:
        message = (
            f"{kept} of {total} weights were kept where {1.0 - probability:g} of them should be "
            f"(chance below {model.DROPOUT_FALSE_ALARM:g})"
        )
        return Violation(
            kind="value", message=message, got=kept, expected=total * (1.0 - probability)
        )
    return _judge_independence(apart.round(), keys, probability)


def _judge_independence(counts: Tensor, keys: int, probability: float) -> Violation | None:
    """Rows that lose all of their keys or none are rare when weights are dropped one by one."""
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
