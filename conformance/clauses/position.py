"""position.*: sinusoidal position encodings and what they do to attention."""

from __future__ import annotations

import torch
from torch import Tensor

from .._golden import golden
from ..base.results import Violation
from ..declare.candidate import Candidate
from ..oracle.comparison import compare, moves
from ..problems.inputs import Inputs
from ..problems.materialise import generator_for
from ..problems.problem import Problem
from ..problems.space import WIDTHS, Space
from ..tolerance.position import position_bound
from ._vocabulary import order_is_free, permutation
from .registry import Finding, clause
from .subject import Subject

SOURCE = "Vaswani et al. 2017, section 3.5; document 002"
# The length and the width that a problem is extended to, by its seed; 0 leaves it as it is. Tables
# wrap, end or lose precision at powers of two; few channels are enough to see it.
EXTENDED = (
    (0, 0),
    (0, 0),
    (0, 0),
    (0, 0),
    (513, 2),
    (65, 4),
    (3, 64),
    (257, 2),
    (2049, 2),
    (2, 514),
)
ENCODINGS = Space(kinds=("positions",), values=("normal", "integers"))


@clause(
    "position.formula",
    level="MUST",
    sentence=(
        "Channel 2j of position i is sin(i / 10000^(2j/d)) and channel 2j + 1 the cosine, added to "
        "the input."
    ),
    source=SOURCE,
    space=ENCODINGS,
    counterfactual="the input without positions",
)
def formula(subject: Subject, problem: Problem) -> Finding:
    """Input plus table, against the float64 table: every other time far, or wide."""
    inputs = subject.inputs(_extended(subject, problem))
    tokens = inputs.key
    table = golden.sinusoidal_positions(tokens.shape[-2], tokens.shape[-1])
    expected = tokens.double() + table
    bound = position_bound(tokens, inputs.query.dtype)
    agreement = compare(
        subject.answer(inputs), expected, bound, wording="the encoding is not the sinusoidal one"
    )
    binding = moves(expected, tokens.double(), bound)
    return Finding(binding=binding, margin=agreement.margin, violation=agreement.violation)


def _extended(subject: Subject, problem: Problem) -> Problem:
    """The same with more positions or channels, by its seed; reduced problems stay as they are."""
    length, width = EXTENDED[problem.seed % len(EXTENDED)]
    longest = subject.declaration.max_length or length
    sizes = problem.geometry
    if length:
        lengths = dict.fromkeys(("query_length", "key_length"), min(length, longest))
        sizes = sizes.replace(**lengths)
    if width:
        sizes = sizes.replace(**dict.fromkeys(WIDTHS, width))
    return problem.replace(geometry=sizes)


@clause(
    "position.relative-shift",
    level="MUST",
    sentence=(
        "Moving by some positions rotates each pair of channels by the same angle, whatever the "
        "position."
    ),
    source=f"{SOURCE}: PE(pos + k) is a linear function of PE(pos)",
    space=Space(kinds=("positions",), values=("normal",), least=(("key_length", 3),)),
    counterfactual="encodings that are not rotated",
)
def relative_shift(subject: Subject, problem: Problem) -> Finding:
    """The candidate's own table, rotated by the shift, against its later rows."""
    inputs = subject.inputs(problem)
    zeros = inputs.with_tokens(key=torch.zeros_like(inputs.key))
    table = subject.answer(zeros).double()
    length = table.shape[-2]
    shift = 1 + problem.seed % (length - 1)
    bound = position_bound(zeros.key, inputs.query.dtype)
    earlier, later = table[..., : length - shift, :], table[..., shift:, :]
    # A rotation mixes a pair's two errors with factors |sin| + |cos| <= 2.
    paired = bound.reshape(*bound.shape[:-1], -1, 2).sum(dim=-1, keepdim=True)
    paired = paired.expand(*paired.shape[:-1], 2).reshape(bound.shape)
    allowed = paired[..., : length - shift, :] + bound[..., shift:, :]
    agreement = compare(
        later,
        golden.rotate(earlier, shift),
        allowed,
        wording=f"moving by {shift} positions is not a rotation of the channel pairs",
    )
    binding = moves(golden.rotate(earlier, shift), earlier, allowed)
    return Finding(binding=binding, margin=agreement.margin, violation=agreement.violation)


# Distances alone (ALiBi) do not see tokens in reverse order: more than one order is tried.
ORDERS = 4
# A golden that moves by so many bounds moves a correct candidate by more than two.
CLEARLY = 6.0


def _has_positions(candidate: Candidate) -> str:
    if candidate.kind == "positions" or candidate.declaration.position is not None:
        return ""
    return "no position encoding is declared"


@clause(
    "position.breaks-equivariance",
    level="MUST",
    sentence="With positions, reordering the tokens is not just a reordering of the rows.",
    source=f"{SOURCE}; document 004: attention alone is permutation equivariant, hence positions",
    space=Space(
        kinds=("positions", "layer"),
        values=("normal",),
        square="always",
        least=(("key_length", 4), ("key_size", 4), ("query_size", 4)),
    ),
    applies=(_has_positions, order_is_free),
)
def breaks_equivariance(subject: Subject, problem: Problem) -> Finding:
    """The negative control: the same permutation must show somewhere in the answer."""
    inputs = subject.inputs(problem)
    generator = generator_for(problem, 14)
    orders = [permutation(inputs.geometry.key_length, generator) for _ in range(ORDERS)]
    if not _can_show(subject, inputs, orders):
        return Finding(binding=False)
    first, bound = _attended(subject, inputs)
    for order in orders:
        second, _ = _attended(subject, _reordered(inputs, order))
        if moves(first.index_select(-2, order), second, 2.0 * bound):
            return Finding()
    message = "reordering the tokens only reorders the rows: positions have no effect"
    return Finding(violation=Violation(kind="value", message=message))


def _can_show(subject: Subject, inputs: Inputs, orders: list[Tensor]) -> bool:
    """Whether some order moves the golden clearly: heads of size 1 have no channels to turn."""
    if subject.candidate.kind != "layer" or not subject.candidate.golden_known:
        return True
    known = subject.golden(inputs)
    return any(
        moves(
            known.output.index_select(-2, order),
            subject.oracle.output(_reordered(inputs, order)),
            CLEARLY * known.bound,
        )
        for order in orders
    )


def _reordered(inputs: Inputs, order: Tensor) -> Inputs:
    return inputs.with_tokens(
        query=inputs.query.index_select(-2, order),
        key=inputs.key.index_select(-2, order),
        value=inputs.value.index_select(-2, order),
    )


def _attended(subject: Subject, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """The layer's answer; for an encoding alone, the golden self-attention over what it returns."""
    answer = subject.answer(inputs).double()
    if subject.candidate.kind == "layer":
        return answer, subject.frame(inputs)[1]
    heads = answer.unsqueeze(1)
    attended = golden.scaled_dot_product_attention(heads, heads, heads).squeeze(1)
    return attended, position_bound(inputs.key, inputs.query.dtype).expand(attended.shape)
