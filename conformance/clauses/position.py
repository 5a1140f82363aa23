"""position.*, bias.alibi: sinusoids, rotary positions, and biases by distance."""

from __future__ import annotations

import torch
from torch import Tensor

from .._golden import golden
from ..declare.candidate import Candidate
from ..declare.declaration import GIVEN_POSITIONS
from ..oracle.comparison import compare, moves
from ..problems.fitting import fitted_geometry
from ..problems.inputs import Inputs
from ..problems.materialise import generator_for
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.rotary_tables import standard_tables
from ..problems.space import EVERY_OPTION, KEY_FORMS, WIDTHS, Space, admits_lengths, can_cross
from ..tolerance.positions import position_bound
from .judging import measures_golden, order_is_free, same_answer
from .rearranging import permutation, reordered_keys
from .registry import Finding, clause, requires, violated
from .subject import Subject

# Powers of two, whose slopes are a geometric sequence, and other numbers.
HEADS = (3, 4, 6, 2, 5, 8, 12, 7, 1)
DISTANCES = EVERY_OPTION.replace(
    values=LIVELY, least=(("key_length", 2),), preferred=(("key_length", 4),), share=0.5
)


_has_alibi = requires(
    lambda c: c.declaration.semantics.alibi, "its semantics declares no linear biases"
)


def _with_heads(subject: Subject, problem: Problem) -> Problem:
    """A problem with another number of heads, by seed, and as many key/value heads."""
    count = HEADS[problem.seed % len(HEADS)]
    wanted = problem.geometry.replace(num_heads=count, num_kv_heads=count)
    return problem.replace(geometry=fitted_geometry(wanted, subject.candidate, DISTANCES))


_has_formula = requires(
    lambda c: "alibi_slopes" not in c.declaration.features, "its calls give the slopes"
)


@clause(
    "bias.alibi",
    sentence=(
        "Each position of distance takes the slope of its head off the logit: 2^(-8h/n) for n "
        "heads if n is a power of two, else those of the next lower power and every other one of "
        "the next higher."
    ),
    source="Press et al. 2022 (ALiBi), section 3, and the authors' code for other numbers of heads",
    space=DISTANCES,
    needs_golden=True,
    counterfactual="no biases, or slopes of one geometric sequence whatever the number of heads",
    applies=(_has_alibi, _has_formula),
    subtle=True,
    resized=_with_heads,
)
def alibi(subject: Subject, problem: Problem) -> Finding:
    """Numbers of heads from 1 to 12, unless pinned, against the golden."""
    inputs = subject.inputs(problem)
    wording = "linear biases are not what is declared"
    finding = measures_golden(subject, inputs, wording)
    yardstick = subject.yardstick(inputs)
    far = ~((_otherwise(subject, inputs) - yardstick.output).abs() <= yardstick.bound)
    shows = bool((far & yardstick.judged).any())
    return finding.only_if(shows)


def _otherwise(subject: Subject, inputs: Inputs) -> Tensor:
    """The answer with power-of-two slopes, or without a bias if these slopes are right."""
    plain = subject.declaration.semantics.replace(alibi=False)
    heads = inputs.geometry.num_heads
    slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1, dtype=torch.float64) / heads)
    if inputs.bias is not None or torch.equal(slopes, golden.alibi_slopes(heads)):
        return subject.oracle.output(inputs, plain)
    sizes = inputs.geometry
    queries = golden.query_positions(sizes.query_length, sizes.key_length, plain)
    keys = torch.arange(sizes.key_length)
    if (given := inputs.given_positions) is not None:
        queries, keys = (each.unsqueeze(1) for each in given)
    right = golden.alibi_bias(heads, queries, keys)
    factors = (slopes / golden.alibi_slopes(heads))[:, None, None]
    return subject.oracle.output(inputs.replace(bias=right * factors), plain)


SOURCE = "Vaswani et al. 2017, section 3.5; Zhang et al. 2023 (Dive into Deep Learning), 11.6"
# The new length and width of a problem, by its seed; 0 changes nothing. Tables wrap, end or lose
# precision at powers of two; few channels are enough to show the fault.
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


def _extended(subject: Subject, problem: Problem) -> Problem:
    """A problem with more positions or channels, by seed."""
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
    "position.formula",
    sentence=(
        "Channel 2j of position i is sin(i / 10000^(2j/d)) and channel 2j + 1 the cosine, added to "
        "the input."
    ),
    source=SOURCE,
    space=ENCODINGS,
    counterfactual="the input without positions",
    resized=_extended,
)
def formula(subject: Subject, problem: Problem) -> Finding:
    """Input plus table against the float64 table, sometimes at far positions or many channels."""
    inputs = subject.inputs(problem)
    tokens = inputs.key
    table = golden.sinusoidal_positions(tokens.shape[-2], tokens.shape[-1])
    expected = tokens.double() + table
    bound = position_bound(tokens, inputs.query.dtype)
    agreement = compare(
        subject.answer(inputs), expected, bound, wording="the encoding is not the sinusoidal one"
    )
    binding = moves(expected, tokens.double(), bound)
    return Finding.of(agreement, binding=binding)


@clause(
    "position.relative-shift",
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
    wording = f"moving by {shift} positions is not a rotation of the channel pairs"
    agreement = compare(later, golden.rotate(earlier, shift), allowed, wording=wording)
    binding = moves(golden.rotate(earlier, shift), earlier, allowed)
    return Finding.of(agreement, binding=binding)


# Distances alone (ALiBi) survive a reversal of the tokens: several orders are tried.
ORDERS = 4
# A golden that moves by so many bounds moves a correct candidate by more than two.
CLEARLY = 6.0


def _has_positions(candidate: Candidate) -> str:
    if candidate.kind == "positions" or candidate.declaration.position is not None:
        return ""
    return "no position encoding is declared"


@clause(
    "position.breaks-equivariance",
    sentence="With positions, reordering the tokens is not just a reordering of the rows.",
    source=f"{SOURCE}; without them attention is equivariant",
    space=Space(
        kinds=("positions", "layer"),
        values=("normal",),
        square="always",
        least=(("key_length", 4), ("key_size", 4), ("query_size", 4)),
    ),
    applies=(_has_positions, order_is_free),
)
def breaks_equivariance(subject: Subject, problem: Problem) -> Finding:
    """The negative control: a permutation of the tokens must show somewhere in the answer."""
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
    return violated("value", message)


def _can_show(subject: Subject, inputs: Inputs, orders: list[Tensor]) -> bool:
    """Whether some order moves the golden clearly: heads of size 1 have no channels to turn."""
    if subject.candidate.kind != "layer" or not subject.candidate.golden_known:
        return True
    expected = subject.golden(inputs)
    return any(
        moves(
            expected.output.index_select(-2, order),
            subject.oracle.output(_reordered(inputs, order)),
            CLEARLY * expected.bound,
        )
        for order in orders
    )


def _reordered(inputs: Inputs, order: Tensor) -> Inputs:
    return inputs.map_tokens(lambda tokens: tokens.index_select(-2, order))


def _attended(subject: Subject, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """The layer's answer; for an encoding alone, golden self-attention over the encoded tokens."""
    answer = subject.answer(inputs).double()
    if subject.candidate.kind == "layer":
        return answer, subject.frame(inputs)[1]
    heads = answer.unsqueeze(1)
    attended = golden.scaled_dot_product_attention(heads, heads, heads).squeeze(1)
    return attended, position_bound(inputs.key, inputs.query.dtype).expand(attended.shape)


ROTARY_SOURCE = "Su et al. 2021 (RoFormer), section 3.2.2"
FORMULA = EVERY_OPTION.replace(
    values=("normal", "decisive"),
    least=(("head_size", 2),),
    preferred=(("head_size", 4), ("key_length", 3)),
    share=0.5,
)
# Keys, queries and head sizes that show a slightly wrong frequency: a few queries at the end of
# many keys, or few tokens with wide heads. Beyond 256, bfloat16 merges neighbouring positions.
FAR = ((200, 2, 16), (0, 0, 0), (3, 3, 64), (421, 2, 16), (40, 40, 8), (0, 0, 0))
# Frequencies rounded to bfloat16 show in bfloat16 answers only further away, in wide heads, at the
# default scale and with few kept keys, since a mean over many keys hides the scores. Tables of
# positions often end at 1024.
MANY_KEYS, MANY_KEYS_EVERY = (1000, 2, 128), 3
FEW = 4


_makes_tables = requires(
    lambda c: c.declaration.rotary_tables is None, "its calls give tables, which know no positions"
)
_counts_positions = requires(
    lambda c: GIVEN_POSITIONS not in c.declaration.features, "its calls give the positions"
)


def is_rotary(candidate: Candidate) -> str:
    """Unless its semantics declares no rotary positions."""
    if candidate.declaration.semantics.rotary == "none":
        return "its semantics declares no rotary positions"
    return ""


def goes_by_distance(candidate: Candidate) -> str:
    """Why the products of turned heads know more than distances, or ""."""
    point = candidate.declaration.semantics
    if point.normalises_late and point.qk_norm == "layer":
        return "the mean that its norm takes off turned heads depends on their positions"
    return ""


def _far(subject: Subject, problem: Problem) -> Problem:
    """A problem with other lengths and head sizes, by seed, unless pinned."""
    if problem.past:
        return problem
    if _gets_many_keys(subject, problem):
        keys, queries, size = MANY_KEYS
        problem = problem.replace(scale=None)
    else:
        keys, queries, size = FAR[problem.seed % len(FAR)]
    if not keys:
        return problem
    queries = queries if can_cross(subject.candidate) else min(keys, 40)
    wanted = problem.geometry.replace(key_length=keys, query_length=queries, head_size=size)
    return problem.replace(geometry=fitted_geometry(wanted, subject.candidate, FORMULA))


def _gets_many_keys(subject: Subject, problem: Problem) -> bool:
    """Whether the problem gets many keys; layers would project all keys for one or two queries."""
    half = problem.dtype == "bfloat16" and subject.candidate.kind == "core"
    return half and problem.seed % MANY_KEYS_EVERY == 1


@clause(
    "position.rotary",
    sentence=(
        "Each pair of channels of query and key is turned by position times base^(-2i/R), in the "
        "declared pairing, and values are not."
    ),
    source=f"{ROTARY_SOURCE}, equation 34; GPT-J and GPT-NeoX pair channels in two ways",
    space=FORMULA,
    needs_golden=True,
    counterfactual="the other pairing, another base, or no rotation",
    applies=(is_rotary,),
    subtle=True,
    resized=_far,
)
def rotary(subject: Subject, problem: Problem) -> Finding:
    """Near and far positions against the golden."""
    inputs = _with_few_kept_keys(subject.inputs(problem))
    other = _other(subject, inputs, problem.seed)
    wording = "rotary positions are not what is declared"
    return measures_golden(subject, inputs, wording, counterfactual=other)


def _with_few_kept_keys(inputs: Inputs) -> Inputs:
    """Keep a few keys far apart if the mask covers many keys; otherwise unchanged."""
    keys = inputs.geometry.key_length
    if inputs.keep is None or inputs.mask_form not in KEY_FORMS or keys < MANY_KEYS[0]:
        return inputs
    kept = torch.linspace(0, keys - 1, FEW).long()
    keep = torch.zeros_like(inputs.keep).index_fill(-1, kept, value=True)
    return inputs.replace(keep=keep)


def _other(subject: Subject, inputs: Inputs, seed: int) -> golden.Semantics:
    """Wrong semantics of positions, visible even in a single turned pair of channels or two."""
    point = subject.declaration.semantics
    pairs = golden.rotary_size(inputs.geometry.head_size, point) // 2
    if pairs < len(("two", "pairs")):
        return point.replace(rotary="none")
    if seed % 2 == 0 and inputs.tables is None:
        return point.replace(rotary_base=point.rotary_base / 2.0)
    return point.replace(rotary="halves" if point.rotary == "interleaved" else "interleaved")


@clause(
    "position.rotary-shift",
    sentence="Only distances count: moving queries and keys together changes nothing.",
    source=f"{ROTARY_SOURCE}, equation 16",
    space=Space(
        mask="always",
        forms=KEY_FORMS,
        causal="maybe",
        values=LIVELY,
        least=(("key_length", 2), ("head_size", 2)),
        share=0.5,
    ),
    needs_golden=True,
    counterfactual="no rotation at all",
    applies=(is_rotary, _makes_tables, _counts_positions, goes_by_distance),
    subtle=True,
)
def rotary_shift(subject: Subject, problem: Problem) -> Finding:
    """Hidden keys before all others, and as many queries if both are counted from the first."""
    inputs = subject.inputs(problem.replace(past=0))
    count = 1 + problem.seed % MOST_BEFORE
    moved, first = moved_behind(subject, inputs, count, generator_for(problem, 21))
    if not admits_lengths(subject.candidate, moved.geometry):
        return Finding(binding=False)
    still = subject.declaration.semantics.replace(rotary="none")
    return same_answer(
        subject,
        moved,
        inputs,
        f"{count} hidden keys before all others change the answer, though no distance changes",
        view=lambda answer: answer[..., first:, :],
        counterfactual=still,
    )


# The largest shift, in positions.
MOST_BEFORE = 9


def moved_behind(
    subject: Subject, inputs: Inputs, count: int, generator: torch.Generator
) -> tuple[Inputs, int]:
    """Everything behind ``count`` hidden tokens, and the number of new rows."""
    from_the_end = subject.declaration.semantics.causal_alignment == "bottom-right"
    both = not can_cross(subject.candidate) or not from_the_end

    def later(tokens: Tensor) -> Tensor:
        shape = (*tokens.shape[:-2], count, tokens.shape[-1])
        drawn = torch.randn(shape, generator=generator).to(tokens.dtype)
        return torch.cat([drawn, tokens], dim=-2)

    def padded(mask: Tensor | None, value: float) -> Tensor | None:
        if mask is None:
            return None
        rows = count if both and mask.shape[2] > 1 else 0
        return torch.nn.functional.pad(mask, (count, 0, rows, 0), value=value)

    query = later(inputs.query) if both and inputs.mode != "self" else inputs.query
    moved = inputs.with_tokens(query=query, key=later(inputs.key), value=later(inputs.value))
    keep = inputs.keep
    if keep is None:
        keep = torch.ones(1, 1, 1, inputs.geometry.key_length, dtype=torch.bool)
    return moved.replace(
        keep=padded(keep, 0.0), bias=padded(inputs.bias, 0.0)
    ), count if both else 0


_is_scaled = requires(
    lambda c: (
        c.declaration.semantics.rotary_scaling is not None
        or c.declaration.semantics.rotary_amplitude != 1.0
    ),
    "its frequencies and tables are not scaled",
)


@clause(
    "position.scaling",
    sentence=(
        "Frequencies are those of the declared scaling, at every position and in every call, and "
        "cosines and sines are as long as declared."
    ),
    source="transformers: rope_scaling linear, yarn, llama3; NTK-aware scaling",
    space=FORMULA,
    needs_golden=True,
    counterfactual="frequencies that are not scaled, or entries as long as one",
    applies=(is_rotary, _makes_tables, _is_scaled),
    subtle=True,
    resized=_far,
)
def scaling(subject: Subject, problem: Problem) -> Finding:
    """Near and far positions, whatever range the scaling is for."""
    inputs = _with_few_kept_keys(subject.inputs(problem))
    point = subject.declaration.semantics
    other = point.replace(rotary_scaling=None)
    if point.rotary_amplitude != 1.0 and (other == point or problem.seed % 2):
        other = point.replace(rotary_amplitude=1.0)
    wording = "rotary positions are not scaled as declared"
    return measures_golden(subject, inputs, wording, counterfactual=other)


_is_given_tables = requires(
    lambda c: c.declaration.rotary_tables is not None, "it makes its own tables of positions"
)


@clause(
    "position.tables",
    sentence=(
        "Queries and keys are turned by the cosines and sines that the call gives, whatever angles "
        "these are of."
    ),
    source="transformers: position_embeddings; llama: freqs_cis; tables of scaled positions",
    space=FORMULA,
    needs_golden=True,
    counterfactual="tables of positions from zero, of the next token or of the first item",
    applies=(is_rotary, _is_given_tables),
    subtle=True,
)
def tables(subject: Subject, problem: Problem) -> Finding:
    """Tables of scattered positions and of any angles against the golden."""
    inputs = subject.inputs(problem)
    if inputs.tables is None:
        return Finding(binding=False)
    point = subject.declaration.semantics
    other = standard_tables(inputs.tables, inputs.geometry.head_size, point)
    if problem.seed % 2:
        first = inputs.tables.of_items(torch.zeros(inputs.geometry.batch, dtype=torch.int64))
        other = inputs.tables.from_row(1) if first is inputs.tables else first
    wording = "queries and keys are not turned by the tables of the call"
    return measures_golden(subject, inputs, wording, counterfactual=inputs.replace(tables=other))


_is_partial = requires(
    lambda c: c.declaration.semantics.rotary_fraction < 1.0, "all of its channels are turned"
)


@clause(
    "position.rotary-partial",
    sentence="Channels beyond the declared fraction are not turned.",
    source="GPT-J (rotary_dim), GPT-NeoX (rotary_pct)",
    space=Space(
        kinds=("core",),
        mask="maybe",
        forms=KEY_FORMS,
        values=LIVELY,
        least=(("key_length", 2), ("head_size", 2)),
        preferred=(("head_size", 8),),
        share=0.5,
    ),
    needs_golden=True,
    counterfactual="all channels turned",
    applies=(is_rotary, _is_partial),
    subtle=True,
)
def rotary_partial(subject: Subject, problem: Problem) -> Finding:
    """Queries with zeros in all turning channels: the order of the keys changes nothing."""
    drawn = subject.inputs(problem.replace(causal=subject.declaration.always_causal, past=0))
    point = subject.declaration.semantics
    turning = torch.zeros(drawn.geometry.head_size, dtype=torch.bool)
    for channels in golden.rotary_pairs(drawn.geometry.head_size, point):
        turning[channels] = True
    inputs = drawn.with_tokens(query=drawn.query.masked_fill(turning, 0.0))
    # Tables of a call hold angles for the declared fraction alone.
    everywhere = drawn if drawn.tables else point.replace(rotary_fraction=1.0)
    by_place = point.alibi or point.score_mod is not None or point.normalises_late
    if subject.declaration.always_causal or by_place:
        wording = "channels that stay are turned"
        return measures_golden(subject, inputs, wording, counterfactual=everywhere)
    order = permutation(inputs.geometry.key_length, generator_for(problem, 22))
    moved = reordered_keys(inputs, order)
    return same_answer(
        subject,
        inputs,
        moved,
        "queries without channels that turn notice the order of the keys",
        counterfactual=everywhere,
    )
