"""States what is returned in place of weights or log-sum-exps, beside answers that are right."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final

import torch
from torch import Tensor

from ..._golden import golden
from ...calls.calling import CandidateFailure, arguments, guarded
from ...calls.devices import taken
from ...calls.differentiating import NotDifferentiable
from ...calls.recording import Recording
from ...clauses.registry import Clause
from ...clauses.subject import Subject
from ...operators import functions, moves, roundings_below, sums
from ...problems.inputs import Inputs
from ...problems.problem import Problem
from ...tolerance import model
from ..agreement import BatteryAnswer
from ..battery import battery, plain_problem
from ..conditions import Condition
from ..entries import named_entry, unnamed_entry
from ..mistaken_answer import ActedAnswers
from ..mistakes import DeclaredCall, NamedMistake, NotExpressible
from ..mistakes.named_mistake import read_every_key, run_of_call
from ..narrowing import say_limits, telling_apart
from ..neighbours import neighbours
from ..observed_gradients import near, room
from .reading import Number, numbers

_HEADS: Final = 1
# The clause that judges the gradient of returned weights.
OF_WEIGHTS: Final = "gradients.weights"
# The kind of violation of a tensor with a wrong shape.
SHAPE: Final = "shape"
Change = Callable[[Tensor], Tensor]
Values = Callable[["Returned"], Tensor]


def asks_for_weights(subject: Subject, clause: Clause, problem: Problem) -> bool:
    """Whether a call of a clause asks for the weights."""
    answers, refused = answers_with_weights(subject, clause, problem)
    return bool(answers or refused)


@dataclass(frozen=True, kw_only=True, eq=False)
class Returned:
    """The tensor returned as weights for inputs, of whatever shape, and the exact weights.

    ``call`` and ``attention`` are the right ones.
    """

    inputs: Inputs
    actual: Tensor
    exact: Tensor
    bound: Tensor
    subject: Subject

    @property
    def call(self) -> DeclaredCall:
        """The call at the declared point."""
        return DeclaredCall(inputs=self.inputs, semantics=self.subject.declaration.semantics)

    @property
    def run(self) -> golden.Run:
        """The right run of the call, with keys that no query reads."""
        return read_every_key(run_of_call(self.call))

    @property
    def logits(self) -> Tensor:
        """The logits that enter the softmax."""
        logits: Tensor = self.run["logits"]
        return logits

    def logits_before_hiding(self, *, minus_infinity: bool) -> Tensor:
        """Return the logits of every key, hidden keys included.

        ``minus_infinity`` keeps the minus infinities of an additive mask.
        """
        logits: Tensor = self.run["biased"]
        by_bias = minus_infinity and self.inputs.mask_form == "bias"
        return logits.masked_fill(~self.run["by_mask"], -math.inf) if by_bias else logits

    @property
    def allowed(self) -> Tensor:
        """The attended pairs as 0.0 and 1.0."""
        allowed: Tensor = self.run["allowed"].expand(self.exact.shape).double()
        return allowed

    @cached_property
    def is_right(self) -> bool:
        """Whether the returned tensor is the weights."""
        return self.actual.shape == self.exact.shape and near(self.actual, self.exact, self.bound)

    def are(self, values: Tensor) -> bool:
        """Whether the returned tensor has given values, within the room for rounding."""
        if values.shape != self.actual.shape:
            return False
        # Equal elements need no room, and a fill far below would grant the others too much.
        finite = values.isfinite() & (values != self.actual)
        same = torch.equal(values[~finite], self.actual[~finite])
        if not same or not bool(finite.any()):
            return same
        bound = self.bound.amax().expand(int(finite.sum()))
        allowed = room(values[finite], self.exact, bound)
        return near(self.actual[finite], values[finite], allowed)


@dataclass(frozen=True)
class Content:
    """A tensor that may be returned in place of the weights; ``words`` are a noun phrase.

    ``about`` is a sentence that explains the words, if needed.
    """

    words: str
    values: Values
    about: str = ""


def _simple() -> Iterator[Content]:
    yield Content("the logits, with minus infinity for hidden keys", lambda r: r.logits)
    yield Content("the logits, with zero for hidden keys", lambda r: _finite(r.logits))
    yield Content("the logits, with one finite number for hidden keys", _filled)
    for minus_infinity, but in (
        (False, ""),
        (True, ", with the minus infinities of an additive mask"),
    ):
        logits = partial(Returned.logits_before_hiding, minus_infinity=minus_infinity)
        softmax = partial(_softmax_of_all, minus_infinity=minus_infinity)
        yield Content(f"the logits, before keys are hidden{but}", logits)
        yield Content(f"the softmax of the logits before keys are hidden{but}", softmax)
    yield Content("the scaled dot products, before the mask", lambda r: r.run["scores"])
    yield Content("the dot products, before scale and mask", lambda r: r.run["products"])
    yield Content("the logarithms of the weights", lambda r: r.exact.log())
    yield Content(
        "the exponentials of the logits, not divided by their sum", lambda r: r.logits.exp()
    )
    yield Content(
        "the exponentials of the logits less their largest, not divided by their sum",
        lambda r: torch.exp(r.logits - r.logits.amax(-1, keepdim=True)),
    )
    for words, given in LEFT_OUT.items():
        yield Content(f"the weights without {words}", partial(_weights_without, given))
    words = "mask and causal rule"
    without = partial(_weights_without, LEFT_OUT[words])
    zeros = f"the weights without {words}, with zeros for hidden keys"
    yield Content(zeros, lambda r: r.allowed * without(r))
    yield Content("the softmax over the queries", lambda r: torch.softmax(r.logits, 2))
    yield Content("the softmax over the heads", lambda r: torch.softmax(r.logits, _HEADS))
    yield Content("the pairs that are attended, as ones and zeros", lambda r: r.allowed)
    yield Content(
        "the same weight for every key that is attended",
        lambda r: r.allowed / r.allowed.sum(-1, keepdim=True).clamp_min(1.0),
    )
    yield Content("one for the largest weight of a row, zero for others", _largest)


# What a call may give, left out, with words.
LEFT_OUT: Final[dict[str, dict[str, Any]]] = {
    "the causal rule": {"causal": False},
    "the mask": {"keep": None, "given_bias": None},
    "the numbers of an additive mask": {"given_bias": None},
    "mask and causal rule": {"keep": None, "given_bias": None, "causal": False},
    "the window": {"window": None},
    "the softcap": {"softcap": None},
    "the sinks": {"given_sinks": None},
    "the scale of the call": {"given_scale": None},
}


def _weights_without(given: dict[str, Any], returned: Returned) -> Tensor:
    weights: Tensor = returned.run.edited(**given)["weights"]
    return weights


def _softmax_of_all(returned: Returned, *, minus_infinity: bool) -> Tensor:
    return torch.softmax(returned.logits_before_hiding(minus_infinity=minus_infinity), -1)


def _filled(returned: Returned) -> Tensor:
    """Return the logits, hidden keys replaced by a common low number of the returned tensor."""
    logits = returned.logits.clone()
    hidden = torch.isneginf(logits)
    numbers_of_hidden = returned.actual[hidden].unique()
    if numbers_of_hidden.numel() == 1 and bool(numbers_of_hidden < logits[~hidden].min()):
        logits[hidden] = numbers_of_hidden
    return logits


def _finite(tensor: Tensor) -> Tensor:
    return tensor.masked_fill(~tensor.isfinite(), 0.0)


def _largest(returned: Returned) -> Tensor:
    weights = returned.exact
    return torch.nn.functional.one_hot(weights.argmax(-1), weights.shape[-1]).double()


_REDUCTIONS: Final[tuple[tuple[str, Change], ...]] = (
    ("the mean of the weights over the heads", lambda w: w.mean(_HEADS, keepdim=True)),
    ("the sum of the weights over the heads", lambda w: w.sum(_HEADS, keepdim=True)),
    ("the largest weight of all heads", lambda w: w.amax(_HEADS, keepdim=True)),
    ("the product of the weights of all heads", lambda w: w.prod(_HEADS, keepdim=True)),
    ("the weights of the first head alone", lambda w: w[:, :1]),
    ("the weights of the last head alone", lambda w: w[:, -1:]),
)


# The weights in other axes; the first change needs a single batch item.
_SHAPES: Final[tuple[tuple[str, Change], ...]] = (
    ("the weights without the axis of batch items", lambda w: w.reshape(w.shape[1:])),
    ("the weights of batch items and heads in one axis", lambda w: w.flatten(0, 1)),
    ("the weights of heads and queries in one axis", lambda w: w.flatten(1, 2)),
)


def _grouped(returned: Returned) -> Tensor:
    batch, heads, *rest = returned.exact.shape
    groups = returned.inputs.geometry.num_kv_heads
    return returned.exact.view(batch, groups, heads // groups, *rest)


def _changed(change: Change, *, everywhere: bool = False, squeezed: bool = False) -> Values:
    """Change the weights; ``everywhere`` expands to all heads, ``squeezed`` drops their axis."""

    def values(returned: Returned) -> Tensor:
        changed = change(returned.exact)
        if everywhere:
            return changed.expand_as(returned.exact)
        return changed.squeeze(_HEADS) if squeezed else changed

    return values


def changed_contents(noun: str, axes: str) -> Iterator[Content]:
    """Yield the right tensor, changed by each operator of its axes."""
    for operator in (*moves(axes), *sums(axes), *functions(axes), *roundings_below()):
        values = partial(_changed_by, change=operator.change)
        yield Content(f"{noun} that are {operator.words}", values)


def _changed_by(returned: Returned, *, change: Callable[..., Tensor]) -> Tensor:
    reads = golden.reads_besides(change)
    return change(returned.exact, *(returned.run[name] for name in reads))


def _weight_contents() -> Iterator[Content]:
    for words, change in _SHAPES:
        yield Content(words, _changed(change))
    yield Content("the weights with an axis of groups and one of their heads", _grouped)
    for words, change in _REDUCTIONS:
        yield Content(words, _changed(change, everywhere=True))
        yield Content(f"{words}, [B, 1, Lq, Lk]", _changed(change))
        yield Content(f"{words}, [B, Lq, Lk]", _changed(change, squeezed=True))


CONTENTS: Final[tuple[Content, ...]] = (
    *_weight_contents(),
    *_simple(),
    *changed_contents("weights", "BHQK"),
)


@dataclass(frozen=True, kw_only=True)
class Beside:
    """A tensor that is returned beside the output, by the feature that declares it.

    ``asks`` gives the inputs of a call that asks for the tensor, ``exact`` the exact tensor and its
    bound, ``of`` the tensor of an evaluation and ``read`` the canonical axes of a returned tensor;
    ``contents`` are what may be returned instead, before multiples of it or behind them.
    """

    feature: str
    noun: str
    fix: str
    asks: Callable[[Subject, Inputs], Inputs]
    exact: Callable[[Subject, Inputs], tuple[Tensor, Tensor]]
    of: Callable[[Subject, golden.Attention], Tensor]
    contents: Sequence[Content]
    contents_first: bool = False
    read: Callable[[Inputs, Tensor], Tensor] = lambda _, returned: returned


WEIGHTS: Final = Beside(
    feature="weights",
    noun="weights",
    fix="return what the softmax gives, [B, H, Lq, Lk]: what the values are summed up with",
    asks=lambda _, inputs: inputs.replace(return_weights=True),
    exact=lambda subject, inputs: (
        subject.golden(inputs).weights,
        subject.oracle.weights_bound(inputs),
    ),
    of=lambda _, core: core.weights,
    contents=CONTENTS,
)


def _mistake_contents(
    mistakes: Iterable[NamedMistake], acted: ActedAnswers, first: Inputs, beside: Beside
) -> Iterator[Content]:
    for mistake in mistakes:
        if acted.touches(mistake, first):
            words = f"the {beside.noun} of {mistake.name}"
            yield Content(words, _values_of_mistake(mistake, acted, beside), mistake.sentence)


def _values_of_mistake(mistake: NamedMistake, acted: ActedAnswers, beside: Beside) -> Values:
    def values(returned: Returned) -> Tensor:
        if not acted.touches(mistake, returned.inputs):
            return returned.exact
        return beside.of(returned.subject, acted.answer(mistake, returned.inputs).core)

    return values


def explain_returned(
    subject: Subject,
    mistakes: Iterable[NamedMistake],
    acted: ActedAnswers,
    *,
    seed: int,
    failing: Problem | None = None,
    beside: Beside = WEIGHTS,
) -> list[dict[str, Any]]:
    """Return the entry of what is returned in place of the tensor ``beside``; [] if it is right.

    The statement is one of the contents or the tensor of a mistake. It holds on the whole battery
    and near the plainest problem with other values, drawn with ``seed`` added. Where the battery is
    right, it is found near the ``failing`` problem.
    """
    if beside.feature not in subject.declaration.features:
        return []
    asked = (each for each in battery(subject) if each.generic)
    observed = list(_observe(subject, asked, beside))
    wrong = [each for each in observed if not each.is_right]
    if not wrong and failing is not None:
        near = map(subject.inputs, (failing, *neighbours(subject, failing)))
        observed += _observe(subject, near, beside)
        wrong = [each for each in observed if not each.is_right]
    else:
        failing = None
    if not wrong:
        return []
    observed.sort(key=lambda each: each.is_right)  # most contents are refuted by the first wrong
    made = _mistake_contents(mistakes, acted, wrong[0].inputs, beside)
    ways = (_proposed(wrong, beside), made)
    proposed: list[Content] = []
    for contents in ways:
        proposed = proposed or [one for one in contents if _explain(one, observed) is not None]
    base = (failing or plain_problem(subject)) if proposed else None
    fresh = [] if base is None else neighbours(subject, base.replace(seed=base.seed + seed))
    unseen = list(_observe(subject, map(subject.inputs, fresh), beside))
    for content in proposed:
        conditions = _explain(content, observed)
        if conditions is not None and _confirmed(content, conditions, unseen):
            return [_entry(content, conditions, beside)]
    return [_unknown(observed, wrong, beside)]


def _proposed(wrong: Sequence[Returned], beside: Beside) -> list[Content]:
    multiples: Iterator[Content] = iter(())
    first = wrong[0]
    if first.actual.shape == first.exact.shape and bool(first.actual.isfinite().all()):
        size = float(first.exact.square().sum())
        factor = float((first.actual * first.exact).sum()) / size if size else 1.0
        read = numbers(factor, first.inputs.geometry, model.SAME_READ)
        others = (number for number in read if number.value(first.inputs.geometry) != 1.0)
        multiples = (_multiple(number, beside.noun) for number in others)
    if beside.contents_first:
        return [*beside.contents, *multiples]
    return [*multiples, *beside.contents]


def _multiple(number: Number, noun: str) -> Content:
    return Content(
        f"{number.words} times the {noun}",
        lambda returned: number.value(returned.inputs.geometry) * returned.exact,
    )


def _explain(content: Content, observed: Sequence[Returned]) -> tuple[Condition, ...] | None:
    """Return the conditions under which a content is returned; None if weights stay unexplained."""
    made, spared = [], []
    for returned in observed:
        given = _given(content, returned)
        right = returned.is_right
        if not right and (given is None or not returned.are(given)):
            return None
        if right and given is not None and not returned.are(given):
            spared.append(returned.inputs)
        elif not right:
            made.append(returned.inputs)
    return telling_apart(made, spared)


def _confirmed(
    content: Content, conditions: Sequence[Condition], unseen: Sequence[Returned]
) -> bool:
    seen = False
    for returned in unseen:
        met = all(condition.holds(returned.inputs) for condition in conditions)
        given = _given(content, returned) if met else None
        if met and given is not None:
            if not returned.are(given):
                return False
            seen = seen or not returned.is_right
        elif not returned.is_right:
            return False
    return seen


def _given(content: Content, returned: Returned) -> Tensor | None:
    try:
        with torch.no_grad():
            return content.values(returned)
    except (NotExpressible, ValueError, RuntimeError, IndexError):
        return None


def _observe(
    subject: Subject, every: Iterable[Inputs], beside: Beside = WEIGHTS
) -> Iterator[Returned]:
    for one in every:
        inputs, answer = beside.asks(subject, one), subject.golden(one)
        if not bool((~answer.empty & answer.representable_core).all()):
            continue
        try:
            positional, keywords = arguments(inputs)
            pair = guarded(subject.forward(inputs), positional, keywords)
        except CandidateFailure:
            continue
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[1], Tensor):  # noqa: PLR2004 (a pair)
            continue
        returned = pair[1] if inputs.batched else pair[1].unsqueeze(0)
        exact, bound = beside.exact(subject, one)
        yield Returned(
            inputs=inputs,
            actual=beside.read(inputs, taken(returned.detach()).double()),
            exact=exact,
            bound=bound,
            subject=subject,
        )


def _entry(content: Content, conditions: Sequence[Condition], beside: Beside) -> dict[str, Any]:
    words = say_limits(conditions)
    only = f" (only {words})" if words else ""
    about = f": {content.about}" if content.about else ""
    what = f"{content.words}{only}{about}"
    return named_entry(
        _name(content, beside),
        f"the answers are right, but what is returned as {beside.noun} is {what}",
        beside.fix,
    )


def _unknown(
    observed: Sequence[Returned], wrong: Sequence[Returned], beside: Beside
) -> dict[str, Any]:
    facts: dict[str, Any] = {"asked": len(observed), "wrong": len(wrong), beside.feature: "wrong"}
    text = (
        f"the answers are right, but the returned {beside.noun} are wrong, and no known mistake "
        f"explains it: they go wrong in {len(wrong)} of {len(observed)} problems"
    )
    odd = next((each for each in wrong if each.actual.shape != each.exact.shape), None)
    if odd is not None:
        facts["shape"], facts["expected_shape"] = list(odd.actual.shape), list(odd.exact.shape)
        text += f"; their shape is {facts['shape']} where {facts['expected_shape']} is expected"
    return unnamed_entry(text, facts)


def answers_with_weights(
    subject: Subject, clause: Clause, problem: Problem
) -> tuple[list[BatteryAnswer], list[Inputs]]:
    """Return the answers to a clause's calls that ask for the weights.

    Also return the inputs of calls whose weights have a wrong shape.
    """
    recording = Recording()
    with subject.recorded(recording), suppress(CandidateFailure, NotDifferentiable):
        clause.check(subject, problem)
    calls = [call for call in recording.calls if call.inputs.return_weights]
    answers = [
        BatteryAnswer(subject=subject, inputs=call.inputs, output=call.output.double())
        for call in calls
        if call.output is not None
    ]
    refused = [one.inputs for one in calls if one.refused is not None and one.refused.kind == SHAPE]
    return answers, refused


def refuses_alike(
    subject: Subject, entries: Sequence[dict[str, Any]], refused: Sequence[Inputs]
) -> bool:
    """Whether the content stated in entries is what calls return in a wrong shape."""
    stated = [one for one in CONTENTS for entry in entries if entry["name"] == _name(one)]
    observed = list(_observe(subject, refused))
    values = [(each, _given(one, each)) for one in stated[:1] for each in observed]
    return bool(values) and all(given is not None and each.are(given) for each, given in values)


def _name(content: Content, beside: Beside = WEIGHTS) -> str:
    return f"returned {beside.noun}: {content.words}"
