"""Wrong ways to compute a gradient of attention, as edits of the backward pass.

The variants are all stages with all operators, and further wrong rules. Each gradient is read by
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final

import torch
from torch import Tensor

from ..._golden import golden
from ...operators import (
    GROUPINGS,
    Operator,
    functions,
    moves,
    multiples,
    parts_lost,
    roundings_below,
    sums,
)
from ..mistakes import BACKWARD, MISTAKES, NamedMistake
from ..mistakes._steps import BLOCKS
from ..mistakes.backward import (
    BIAS_LEFT_OUT,
    CAUSALITY_LEFT_OUT,
    MASK_LEFT_OUT,
    RECOMPUTE,
    SAVED_ANSWER,
    SHARED,
    WINDOW_LEFT_OUT,
    Edit,
    logarithms_of_sums,
    make_shared_gradients,
    recomputed,
    total_neighbours,
)
from ..mistakes.named_mistake import Edits

Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class Variant:
    """One way to compute gradients; ``words`` follow "in the gradient of the query".

    ``name`` is that of a catalogue entry, whose ``words`` are a full sentence. ``each`` variants
    concern each gradient separately, not a common intermediate.
    """

    words: str
    fix: str
    edits: Edits
    name: str = ""
    each: bool = False


RIGHT: Final = Variant(words="", fix="", edits=())
_SOFTMAX: Final = "dS = P * (dP - rowsum(P * dP))"
_OPERANDS: Final = "dP = dO V^T, dQ = scale dS K, dK = scale dS^T Q, dV = P^T dO"
_SLOPE: Final = "multiply dS by 1 - tanh(scores / c)²"
_TURN: Final = "turn the gradient of a turned head back by the angle of its place"
_FLOW: Final = "let the gradient flow through the norm, too: (g - y mean(y g)) / norm"
# What rowsum(P * dP) is called, with the comma of an apposition.
_TERM: Final = "the row term of the softmax, rowsum(P * dP),"
# Results in nouns that an operator may change, with the verb and what to do instead.
_CHANGED: Final = (
    ("what flows back", "output_gradient", _OPERANDS, (moves, sums, parts_lost, functions)),
    (_TERM, "row_term", _SOFTMAX, (moves, sums, functions, multiples)),
    ("P * dP in the row term", "row_products", _SOFTMAX, (parts_lost, functions)),
    ("dP", "weight_gradient", _SOFTMAX, (moves, functions)),
    ("dS", "score_gradient", _OPERANDS, (moves, sums, parts_lost, functions)),
    ("the derivative of the softcap", "score_slope", _SLOPE, (functions,)),
)
# Results of the forward pass that a stage of the backward pass reads.
_OPERANDS_CHANGED: Final = (
    ("the keys that dS meets", "query_gradient", "key"),
    ("the queries that dS meets", "key_gradients", "query"),
    ("the values that dP is made of", "weight_gradient", "value"),
    ("the weights that dP - D meets", "logit_gradient", "live_weights"),
    ("the weights", "value_gradients", "weights"),
)
_OF_EACH: Final = ("given_query_gradient", "given_key_gradient", "given_value_gradient")
_STAGES: Final = {stage.name: stage for stage in golden.BOTH_PASSES.stages}
# Stages that a backward pass without saved weights recomputes.
_UP_TO_WEIGHTS: Final = frozenset(
    stage.name for stage in golden.FORWARD.stages if stage.name not in ("value", "output")
)


def _variants() -> Iterator[Variant]:
    yield from _catalogue_variants()
    yield from _rule_variants()
    yield from _recomputed()
    for noun, stage, fix, kinds in _CHANGED:
        for operator in _operators(_STAGES[stage].axes, kinds):
            changed = (Edit(stage, change=operator.change),)
            yield Variant(words=f"{noun} is {operator.words}", fix=fix, edits=changed)
    for noun, stage, operand in _OPERANDS_CHANGED:
        for operator in _operators(_STAGES[operand].axes, (moves, sums, functions)):
            rule = change_operand(_STAGES[stage].rule, operand, operator.change)
            made = (Edit(stage, rule),)
            yield Variant(words=f"{noun} are {operator.words}", fix=_OPERANDS, edits=made)
    for operator in _operators("BHKD", (moves, sums, parts_lost)):
        edits = tuple(Edit(stage, change=operator.change) for stage in _OF_EACH)
        words = f"each element is {operator.words.replace('key', 'token')}"
        fix = "return each element at its own place"
        yield Variant(words=words, fix=fix, edits=edits, each=True)
    for one, changes in _forward_mistakes():
        yield from _recomputed_with(f"with a mistake: {one.sentence}", changes)


def _operators(
    axes: str, kinds: tuple[Callable[[str], Iterator[Operator]], ...]
) -> Iterator[Operator]:
    for kind in kinds:
        yield from kind(axes)
    yield from roundings_below()


def change_operand(
    rule: Callable[..., Any], operand: str, change: Callable[..., Any]
) -> golden.Rewired:
    """Return a rule that reads one of its results changed."""
    names, more = golden.reads(rule), golden.reads_besides(change)
    place = names.index(operand)

    def made(*results: Any) -> Any:
        own, further = list(results[: len(names)]), results[len(names) :]
        own[place] = change(own[place], *further)
        return rule(*own)

    return golden.Rewired(made, (*names, *more))


def _catalogue_variants() -> Iterator[Variant]:
    heads = golden.BOTH_PASSES.steps
    for entry in BACKWARD:
        if entry.backward and all(edit.stage in heads for edit in entry.backward):
            yield Variant(
                words=entry.sentence, fix=entry.fix, edits=entry.backward, name=entry.name
            )


def _collected(
    heads: Tensor, sizes: golden.Sizes, *, reads: Callable[[Tensor, int, int], Tensor]
) -> Tensor:
    """Sum gradients of query heads over the key/value head read; drop excess heads."""
    read = reads(torch.arange(sizes.num_heads), sizes.num_heads, max(sizes.num_kv_heads, 1))
    belongs = read[:, None] == torch.arange(sizes.num_kv_heads)
    return torch.einsum("bhld,hg->bgld", heads, belongs.to(heads))


def _values_gradient(weights: Tensor, gradient: Tensor) -> Tensor:
    return weights.mT @ gradient


def _over_attended(numbers: Tensor, allowed: Tensor) -> Tensor:
    kept = allowed.expand(numbers.shape).double()
    total: Tensor = (kept * numbers).sum(dim=-1, keepdim=True)
    return total / kept.sum(dim=-1, keepdim=True).clamp_min(1.0)


def _rule_variants() -> Iterator[Variant]:
    for stage, fix, words, rule in _RULES:
        yield Variant(words=words, fix=fix, edits=(Edit(stage, rule),))
    for words, total in (
        ("first query head of each group is missing", lambda heads: heads[:, :, 1:].sum(dim=2)),
        ("last query head of each group is missing", lambda heads: heads[:, :, :-1].sum(dim=2)),
    ):
        yield Variant(words=f"the {words}", fix=SHARED, edits=total_neighbours(total))
    for words, reads in GROUPINGS:
        said = f"what flows back to query head h goes to key/value head {words}"
        yield Variant(
            words=said, fix=SHARED, edits=make_shared_gradients(partial(_collected, reads=reads))
        )
    words = "the softmax is passed as if it were the identity, for hidden keys as well"
    slopes = (Edit(name, change=torch.ones_like) for name in ("score_slope", "bias_slope"))
    passed_as_it_is = Edit("logit_gradient", lambda weight_gradient: weight_gradient)
    yield Variant(words=words, fix=_SOFTMAX, edits=(passed_as_it_is, *slopes))
    for words, of in (  # of the right one, 1 - tanh²
        ("1 - |tanh|", lambda slope: 1.0 - (1.0 - slope).sqrt()),
        ("1 + tanh²", lambda slope: 2.0 - slope),
        ("tanh²", lambda slope: 1.0 - slope),
        ("(1 - tanh²)²", torch.square),
    ):
        text = f"the derivative of the softcap is taken to be {words}"
        yield Variant(words=text, fix=_SLOPE, edits=(Edit("score_slope", change=of),))
    for words, fix, edits in _WAYS_BACK:
        yield Variant(words=words, fix=fix, edits=edits, each=True)


_RULES: Final[tuple[tuple[str, str, str, Callable[..., Tensor]], ...]] = (
    *(
        ("row_term", _SOFTMAX, f"{_TERM} {words}", rule)
        for words, rule in (
            (
                "is the mean of P * dP over the keys that are attended",
                golden.Rewired(_over_attended, ("row_products", "allowed")),
            ),
            (
                "is the plain mean of dP",
                lambda weight_gradient: weight_gradient.mean(-1, keepdim=True),
            ),
            (
                "is the plain mean of dP over the keys that are attended",
                golden.Rewired(_over_attended, ("weight_gradient", "allowed")),
            ),
            (
                "is the plain sum of dP",
                lambda weight_gradient: weight_gradient.sum(-1, keepdim=True),
            ),
            (
                "has squared weights",
                lambda live_weights, row_products: (live_weights * row_products).sum(
                    -1, keepdim=True
                ),
            ),
            ("is the largest P * dP", lambda row_products: row_products.amax(-1, keepdim=True)),
            (
                "is a sum over the queries",
                lambda row_products: row_products.sum(dim=-2, keepdim=True),
            ),
        )
    ),
    *(
        ("logit_gradient", _SOFTMAX, words, rule)
        for words, rule in (
            (
                "the softmax has the diagonal p (1 - p) of its derivative alone",
                lambda live_weights, row_products: (1.0 - live_weights) * row_products,
            ),
            (
                "the softmax is passed as if it were the identity of the keys that are attended",
                lambda weight_gradient, passed: passed * weight_gradient,
            ),
            (
                "the factor P of the softmax's derivative is missing",
                lambda weight_gradient, row_term, passed: passed * (weight_gradient - row_term),
            ),
            (
                "the row term of the softmax is not multiplied by P",
                lambda row_products, row_term: row_products - row_term,
            ),
            (
                "the factor P of the softmax's derivative is squared",
                lambda live_weights, weight_gradient, row_term: (
                    live_weights.square() * (weight_gradient - row_term)
                ),
            ),
        )
    ),
    *(
        (
            "value_gradients",
            "dV = P^T dO",
            words,
            golden.Rewired(_values_gradient, (name, "output_gradient")),
        )
        for words, name in (
            ("the weights are not divided by their sum", "exponentials"),
            ("the gradient of the logits stands for the weights", "logit_gradient"),
            ("the weights are all one", "passed"),
        )
    ),
    (
        "value_gradients",
        "dV = P^T dO",
        "the weights are replaced by the logits",
        lambda logits, output_gradient: (
            logits.masked_fill(~logits.isfinite(), 0.0).mT @ output_gradient
        ),
    ),
    (
        "value_gradients",
        "dV = P^T dO",
        "the weights are the same for every key that is attended",
        lambda passed, output_gradient: (
            (passed / passed.sum(-1, keepdim=True).clamp_min(1.0)).mT @ output_gradient
        ),
    ),
    *(
        (
            "value_gradients",
            "dV = P^T dO",
            f"the weights of each tile of {size} keys go through a softmax once more",
            partial(
                lambda weights, output_gradient, *, size: (
                    torch.cat([tile.softmax(-1) for tile in weights.split(size, -1)], -1).mT
                    @ output_gradient
                ),
                size=size,
            ),
        )
        for size in BLOCKS[3:]
    ),
)


def _both(change: Callable[..., Any], before: str, behind: str, *more: str) -> Edits:
    return tuple(
        Edit(
            behind.format(role),
            golden.Rewired(change, (before.format(role), *(each.format(role) for each in more))),
        )
        for role in ("query", "key")
    )


def _turned(times: int) -> Edits:
    def turned(gradient: Tensor, inputs: Any, places: Tensor) -> Tensor:
        return golden.rotate_heads(gradient, times * places, inputs.point)

    return tuple(
        Edit(
            f"turned_{role}_gradient",
            golden.Rewired(turned, (f"{role}_gradient", "inputs", f"{role}_places")),
        )
        for role in ("query", "key")
    )


def _divide_by_constant(gradient: Tensor, heads: Tensor, inputs: Any, *, centred: bool) -> Tensor:
    """Divide by the norm of the heads, taken for a constant; their mean as well unless centred."""
    point = inputs.point
    layer = point.qk_norm == "layer"
    less_mean = heads - heads.mean(dim=-1, keepdim=True) if layer else heads
    divided = gradient / golden.norms(less_mean, point)
    if layer and centred:
        divided = divided - divided.mean(dim=-1, keepdim=True)
    return divided


_BEFORE, _TURNED_BACK, _GIVEN = "{}_gradient", "turned_{}_gradient", "given_{}_gradient"
_WAYS_BACK: Final[tuple[tuple[str, str, Edits], ...]] = (
    (
        "the rotation is not turned back",
        _TURN,
        _both(lambda gradient: gradient, _BEFORE, _TURNED_BACK),
    ),
    ("heads are turned on by their angles instead of back", _TURN, _turned(1)),
    *(
        (
            words,
            _FLOW,
            _both(
                partial(_divide_by_constant, centred=centred),
                _TURNED_BACK,
                _GIVEN,
                "given_{}",
                "inputs",
            ),
        )
        for words, centred in (
            ("the norm is taken for a constant", True),
            ("norm and mean are taken for constants", False),
        )
    ),
    (
        "the normalisation is left out",
        _FLOW,
        _both(lambda gradient: gradient, _TURNED_BACK, _GIVEN),
    ),
    (
        "rotation and normalisation are left out",
        f"{_TURN}; {_FLOW}",
        _both(lambda gradient: gradient, _BEFORE, _GIVEN),
    ),
)


def _recomputed() -> Iterator[Variant]:
    for words, edits in (
        ("without mask and causal rule", (MASK_LEFT_OUT, BIAS_LEFT_OUT, CAUSALITY_LEFT_OUT)),
        ("without causal rule and window", (CAUSALITY_LEFT_OUT, WINDOW_LEFT_OUT)),
        ("without the mask's numbers and the causal rule", (BIAS_LEFT_OUT, CAUSALITY_LEFT_OUT)),
        (
            "under the causal rule, in calls without it too",
            (Edit("by_causality", lambda ahead: ahead <= 0),),
        ),
        (
            "under the causal rule in calls without it alone",
            (Edit("by_causality", _causal_where_it_is_not),),
        ),
    ):
        yield from _recomputed_with(words, edits)
    lse = "the saved logarithm of the sum of the exponentials"
    for words, change in (
        ("is taken to be of base 2", lambda total: total * torch.log(torch.tensor(2.0).double())),
        (
            "is taken to be of base e, and is of base 2",
            lambda total: total / torch.log(torch.tensor(2.0).double()),
        ),
        ("is not subtracted", torch.zeros_like),
        *((f"is {one.words}", one.change) for one in (*moves("BHQ1"), *sums("BHQ1"))),
    ):
        yield _saved_sums_variant(f"{lse} {words}", change)
    yield Variant(
        words=f"{lse} is the largest logit",
        fix=RECOMPUTE,
        edits=(Edit("shares", lambda exponentials: exponentials), SAVED_ANSWER),
    )


def _recomputed_with(words: str, edits: Edits) -> Iterator[Variant]:
    for way in recomputed(*edits):
        yield Variant(words=f"the weights are recomputed {words}", fix=RECOMPUTE, edits=way)


def _causal_where_it_is_not(ahead: Tensor, counted: tuple[bool, bool]) -> Tensor:
    return torch.ones_like(ahead, dtype=torch.bool) if counted[0] else ahead <= 0


def _forward_mistakes() -> Iterator[tuple[NamedMistake, Edits]]:
    for one in MISTAKES:
        if one.inputs or one.point:
            continue
        edits = (*golden.edits_of(golden.STANDARD.replace(**one.changes)), *one.edits)
        if edits and all(edit.stage in _UP_TO_WEIGHTS for edit in edits):
            yield one, edits


def _saved_sums_variant(words: str, change: Change) -> Variant:
    def shares(logits: Tensor, right: golden.Run) -> Tensor:
        total = logarithms_of_sums(right)
        total = change(total.masked_fill(right["empty"].unsqueeze(-1), 0.0))
        return torch.exp(logits - total)

    return Variant(words=words, fix=RECOMPUTE, edits=(Edit("shares", shares), SAVED_ANSWER))


@cache
def all_variants() -> tuple[Variant, ...]:
    """Return the right pass, then every variant, those of the catalogue first.

    Made when a wrong gradient is first read: there are thousands.
    """
    return (RIGHT, *_variants())


@cache
def places() -> dict[int, int]:
    """Return the place of each variant by its identity."""
    return {id(variant): place for place, variant in enumerate(all_variants())}
