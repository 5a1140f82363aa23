"""model.*: properties of a whole model, whatever it computes.

No golden answer of a whole model exists: the clauses compare answers of the model that must be
equal. Two answers may lie apart by ``SPREAD_FACTOR`` times their movement when each weight changes
by one unit in the last place, as in the clauses that judge attention up to gauge.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import wraps
from typing import TYPE_CHECKING, Final, cast

import numpy as np
import torch

from ..base.results import INVERTED, SITE, Violation
from ..calls.calling import CandidateFailure
from ..declare.candidate import Candidate
from ..declare.declaration import WHOLE_MODEL
from ..graphs.process import DEFAULT, Array, Setting
from ..graphs.protocol import GraphLost, GraphRefused
from ..models.model_inputs import ATTENDING, ITEM, LOOKING_AHEAD, NUDGES, PADDED, ModelCall
from ..oracle.comparison import Comparison, compare
from ..problems.problem import Problem
from ..problems.space import Space
from ..tolerance import model as constants
from .registry import Check, Finding, clause, requires, violated
from .subject import Subject

if TYPE_CHECKING:  # imports onnx, which few runs need
    from ..models.whole_model import WholeModel

Answers = Mapping[str, Array]
MODELS: Final = Space(kinds=(WHOLE_MODEL,), values=("normal",), share=0.25)
PADDED_RIGHT: Final = MODELS.replace(
    mask="always", forms=("keep",), patterns=("padding",), least=(("key_length", 2),)
)
MASKED: Final = PADDED_RIGHT.replace(
    patterns=("padding", "left-padding", "random", "one-hidden", "mixed")
)
# Items of a batch that are also asked alone; each costs a run.
_MOST_ALONE: Final = 3


def model_of(candidate: Candidate) -> WholeModel:
    """The model behind a candidate; LookupError without a model."""
    if candidate.kind == WHOLE_MODEL:
        return cast("WholeModel", candidate.function)
    msg = f"{candidate.name} is no whole model"
    raise LookupError(msg)


def drawn_call(subject: Subject, problem: Problem) -> ModelCall:
    """The call of a model that a problem stands for."""
    inputs, sizes = subject.inputs(problem), problem.geometry
    keep = inputs.keep
    mask = None
    if keep is not None:
        mask = keep.expand(sizes.batch, 1, 1, sizes.key_length)[:, 0, 0].numpy()
    lengths = (sizes.key_length, sizes.query_length)
    return model_of(subject.candidate).call(sizes.batch, lengths, mask, problem.seed)


@contextmanager
def giving_answers() -> Iterator[None]:
    """Turn the exceptions of a model that gives no answer into CandidateFailure."""
    try:
        yield
    except GraphLost as lost:
        raise CandidateFailure(Violation(kind=lost.kind, message=f"the model {lost}")) from None
    except GraphRefused as refusal:
        raise CandidateFailure(Violation(kind="raised", message=str(refusal))) from None


def run(
    model: WholeModel, call: ModelCall, *, setting: Setting = DEFAULT, taps: Sequence[str] = ()
) -> dict[str, Array]:
    """What the model answers; raises CandidateFailure where it gives no answer."""
    with giving_answers():
        answers = model.run(call, setting=setting, taps=taps)
    misshapen = model.misshapen(call, answers)
    if misshapen:
        raise CandidateFailure(Violation(kind="shape", message=misshapen))
    return answers


def _existing(letters: str, shape: Sequence[int], call: ModelCall) -> Array:
    """The entries that belong to existing tokens (in all items, where heads share their axis)."""
    judged = np.ones(shape, dtype=bool)
    keep = call.keep if shape[0] == call.batch else np.atleast_2d(call.keep.all(axis=0))
    for place in (place for place, letter in enumerate(letters) if letter == PADDED):
        sizes = [1] * len(shape)
        sizes[0], sizes[place] = len(keep), shape[place]
        judged = judged & keep.reshape(sizes)
    return judged


def allowed_differences(
    model: WholeModel, call: ModelCall, answers: Answers, taps: Sequence[str] = ()
) -> dict[str, float]:
    """The allowed distance between answers that must be equal, by name.

    Taps are left out where a run lacks them or answers in another shape.
    """
    size = constants.NUDGE_OF_INTEGERS if model.engine.rounds_to_integers else 0.0
    settings = [Setting(nudge=seed, nudge_size=size) for seed in NUDGES]
    others = [run(model, call, setting=setting, taps=taps) for setting in settings]
    result = {}
    for name, value in answers.items():
        nudged = [other[name] for other in others if name in other]
        if len(nudged) < len(others) or any(each.shape != value.shape for each in nudged):
            continue
        exact = value.astype(np.float64)
        widest = max(_largest(np.abs(each.astype(np.float64) - exact)) for each in nudged)
        step = float(np.finfo(value.dtype).eps) * _largest(np.abs(value))
        result[name] = constants.SPREAD_FACTOR * (widest + step)
    return result


def allowed_of_alike(model: WholeModel, call: ModelCall, answers: Answers) -> dict[str, float]:
    """The allowed distance between answers to calls of equal sizes that must be equal.

    The same kernels compute both: rounding moves no integer.
    """
    if not model.engine.rounds_to_integers:
        return allowed_differences(model, call, answers)
    return {
        name: constants.SPREAD_FACTOR * float(np.finfo(value.dtype).eps) * _largest(np.abs(value))
        for name, value in answers.items()
    }


def _largest(sizes: Array) -> float:
    finite = sizes[np.isfinite(sizes)]
    return float(finite.max()) if finite.size else 0.0


def agreement(
    model: WholeModel,
    expected: Answers,
    got: Answers,
    allowed: Mapping[str, float],
    judged: Mapping[str, Array],
    wording: str,
) -> Comparison:
    """Compare two sets of answers where they are judged; the worst comparison."""
    several = len(model.outputs) > 1
    found = [
        compare(
            torch.from_numpy(got[name].astype(np.float64)),
            torch.from_numpy(expected[name].astype(np.float64)),
            torch.full(got[name].shape, allowed[name], dtype=torch.float64),
            judged=torch.from_numpy(np.broadcast_to(judged[name], got[name].shape).copy()),
            wording=f"{wording} in {name}" if several else wording,
            both_answers=True,
            axes=tuple(_axes(letters)),
        )
        for name, letters in model.outputs.items()
    ]
    return max(found, key=lambda one: one.margin)


def _axes(letters: str) -> list[str]:
    words = {ITEM: "item", PADDED: "token", ATTENDING: "token"}
    names: list[str] = []
    for place, letter in enumerate(letters):
        word = words.get(letter, "channel" if place == len(letters) - 1 else f"axis {place}")
        names.append(f"axis {place}" if word in names else word)
    return names


def shows(
    expected: Answers, other: Answers, allowed: Mapping[str, float], judged: Mapping[str, Array]
) -> bool:
    """Whether a counterfactual's answers differ from the right ones anywhere."""
    return any(
        bool((np.abs(other[name] - value) > allowed[name])[judged[name]].any())
        for name, value in expected.items()
        if name in judged
    )


def existing_tokens(model: WholeModel, call: ModelCall, answers: Answers) -> dict[str, Array]:
    """The entries of each answer that belong to existing tokens; bool, of the answer's shape."""
    rooms = of_fixed_room(model)
    return {
        name: _existing(letters, answers[name].shape, call) & (name not in rooms)
        for name, letters in model.outputs.items()
    }


def of_fixed_room(model: WholeModel) -> set[str]:
    """The caches among the answers that do not grow: unused places of theirs hold anything."""
    return {name for name in model.handed_on if {PADDED, ATTENDING}.isdisjoint(model.outputs[name])}


def _first_site(
    model: WholeModel, first: ModelCall, second: ModelCall, tokens: slice
) -> int | None:
    """The first attention whose answers to two calls differ, None where no difference is seen.

    The second call holds ``tokens`` of the padded sequence of the first. Answers for absent tokens
    are left out.
    """
    outputs = {site.output: site for site in model.engine.sites}
    taps = list(outputs)
    try:
        with giving_answers():  # in whatever shape: the second may hold caches of the first
            expected, got = (model.run(call, taps=taps) for call in (first, second))
            allowed = allowed_differences(model, first, expected, taps)
    except CandidateFailure:
        return None
    for name, site in outputs.items():
        if not all(name in known for known in (expected, got, allowed)):
            continue
        value, shape = expected[name], expected[name].shape
        letters, whole, judged = judged_heads(site.output_letters, shape, first)
        if whole:
            value, judged = (
                of_tokens(each, letters, tokens.start or 0, tokens.stop) for each in (value, judged)
            )
        if value.shape != got[name].shape:
            continue
        if shows({name: value}, got, allowed, {name: judged}):
            return site.index
    return None


def judged_heads(
    output_letters: str, shape: Sequence[int], call: ModelCall
) -> tuple[str, bool, Array]:
    """The axis letters of an attention's answer, whether its queries are padded, real entries."""
    letters = output_letters.replace("L", PADDED)
    whole = "F" not in letters and shape[letters.index(PADDED)] == call.lengths[0]
    return letters, whole, _existing(letters, shape, call) if whole else np.ones(shape, bool)


def named(model: WholeModel, index: int) -> str:
    """``attention #1 (encoder.layer.1)``."""
    scope = model.described[index]["scope"]
    return f"attention #{index}" + (f" ({scope})" if scope else "")


def differing(
    model: WholeModel,
    comparison: Comparison,
    calls: tuple[ModelCall, ModelCall] | None = None,
    *,
    binding: bool = True,
    tokens: slice = slice(None),
) -> Finding:
    """The finding of a comparison; with two calls it names the first attention that differs.

    The second call holds ``tokens`` of the padded sequence of the first.
    """
    finding = Finding.of(comparison, binding=binding)
    violation = finding.violation
    if violation is None or calls is None:
        return finding
    site = _first_site(model, *calls, tokens)
    if site is None:
        return finding
    message = f"{violation.message}; the first that answers otherwise is {named(model, site)}"
    return finding.told({SITE: site}, message)


def blaming(finding: Finding, site: int) -> Finding:
    """A finding whose violation says which attention is to blame."""
    return finding.told({SITE: site})


def _by_either_sign(check: Check) -> Check:
    """Wrap a check: a violation that vanishes under inverted masks is reported as inversion."""

    @wraps(check)
    def asked(subject: Subject, problem: Problem) -> Finding:
        finding, model = check(subject, problem), model_of(subject.candidate)
        names, other = model.inverted, copy(subject)
        other.candidate = dataclasses.replace(subject.candidate, function=model.turned)
        if not (names and finding.violation) or check(other, problem).violation:
            return finding
        said = f"{' and '.join(names)} works the wrong way round: {finding.violation.message}"
        return finding.told({INVERTED: list(names)}, said)

    return asked


_JOINED: Final = (
    "its activations become integers by the range of a whole batch, so every token counts"
)
apart: Final = requires(lambda c: not model_of(c).engine.quantised, _JOINED)
_free_length: Final = requires(
    lambda c: len(model_of(c).taken.get("length", (1, 2))) > 1, "the file fixes the length"
)
_takes_positions: Final = requires(
    lambda c: model_of(c).has_positions, "positions are no input: the first token is at the first"
)
_has_tokens: Final = requires(lambda c: model_of(c).is_sequential, "it takes no tokens")


_hides_more: Final = requires(
    lambda c: not model_of(c).counts_keys or not all(model_of(c).causal_sites),
    "its operator counts an item's tokens: padding before them is seen, by its documentation, and "
    "padding behind them by no token",
)


@clause(
    "model.padding-is-absence",
    sentence="A model answers an item with padding on the right as the item without its padding.",
    source="onnxruntime#6044: padded batches differ from single sequences",
    space=PADDED_RIGHT,
    counterfactual="the padding as tokens; where no token sees later ones, other tokens",
    applies=(apart, _free_length),
    explained=False,
    subtle=True,
)
@_by_either_sign
def padding_is_absence(subject: Subject, problem: Problem) -> Finding:
    """Items with padding against the same items cut short, each alone."""
    model = model_of(subject.candidate)
    return _against_cut(model, drawn_call(subject, problem), "padding on the right changes")


@clause(
    "model.left-padding",
    sentence=(
        "A model that is given positions answers an item with padding on the left, and positions "
        "that count its own tokens, as the item without its padding."
    ),
    source="transformers, padding_side='left': generation from padded prompts",
    space=PADDED_RIGHT.replace(patterns=("left-padding",)),
    counterfactual="the padding as tokens",
    applies=(apart, _free_length, _takes_positions),
    explained=False,
    subtle=True,
)
@_by_either_sign
def left_padding(subject: Subject, problem: Problem) -> Finding:
    """The same with the padding in front."""
    model = model_of(subject.candidate)
    call = drawn_call(subject, problem)
    counted = np.maximum(np.cumsum(call.keep, axis=1) - 1, 0)
    padded = model.with_positions(call, counted)
    # An answer for a whole item may belong to its first place, now padding.
    places = {n: axes for n, axes in model.outputs.items() if {PADDED, ATTENDING} & set(axes)}
    if not places:
        return Finding(inapplicable="its answers are for whole items, perhaps of the first place")
    return _against_cut(
        dataclasses.replace(model, outputs=places), padded, "padding on the left changes"
    )


def _against_cut(model: WholeModel, call: ModelCall, wording: str) -> Finding:
    """Items with padding on one side, each against itself without padding."""
    copies = 1 if 1 in model.taken.get("batch", (1,)) else call.batch
    worst, binding = None, False
    calls, of_worst = (call, call), slice(None)
    for item in range(min(call.batch, _MOST_ALONE)):
        padded = model.items(call, [item] * copies)
        tokens = np.flatnonzero(call.keep[item])
        span = slice(int(tokens[0]), int(tokens[-1]) + 1)
        cut = model.cut(padded, span)
        if not (model.takes(copies, padded.lengths) and model.takes(copies, cut.lengths)):
            continue
        answers = run(model, padded)
        allowed = allowed_differences(model, padded, answers)
        judged = existing_tokens(model, padded, answers)
        if all(model.causal_sites):  # no token sees the padding behind it
            other = model.with_tokens(padded, padded.keep, item + 1)
        else:
            other = model.with_mask(padded, np.ones_like(padded.keep))
        binding = binding or shows(answers, run(model, other), allowed, judged)
        got = {
            name: of_tokens(value, model.outputs[name], span.start, span.stop)
            for name, value in answers.items()
        }
        every = {name: np.ones(value.shape, bool) for name, value in got.items()}
        found = agreement(model, run(model, cut), got, allowed, every, f"{wording} the answer")
        if worst is None or found.margin > worst.margin:
            worst, calls, of_worst = found, (padded, cut), span
    if worst is None:
        return Finding(binding=False)
    return differing(model, worst, calls, binding=binding, tokens=of_worst)


def of_tokens(
    answer: Array, letters: str, first: int, end: int | None = None, *, along: int = 0
) -> Array:
    """An answer for some tokens alone of the padded sequence, or of the one that attends."""
    span, own = slice(first, end), (PADDED, ATTENDING)[along]
    return answer[tuple(span if letter == own else slice(None) for letter in letters)]


@clause(
    "model.padding-contents",
    sentence="What stands where the mask says that there is no token changes no answer.",
    source="onnxruntime#18945: fused attention that takes every mask for padding on the right",
    space=MASKED,
    counterfactual="the same change with a mask that hides nothing",
    applies=(apart, _hides_more),
    explained=False,
    subtle=True,
)
@_by_either_sign
def padding_contents(subject: Subject, problem: Problem) -> Finding:
    """New tokens in hidden places; answers at all visible places must not change."""
    model = model_of(subject.candidate)
    call = drawn_call(subject, problem)
    other = model.with_tokens(call, ~call.keep, problem.seed + 1)
    answers, changed = run(model, call), run(model, other)
    allowed = allowed_of_alike(model, call, answers)
    judged = _of_tokens(model, call, answers)
    seen = [model.with_mask(each, np.ones_like(call.keep)) for each in (call, other)]
    binding = shows(run(model, seen[0]), run(model, seen[1]), allowed, judged)
    wording = "other tokens under the mask change the answer"
    comparison = agreement(model, answers, changed, allowed, judged, wording)
    return differing(model, comparison, (call, other), binding=binding)


def _of_tokens(model: WholeModel, call: ModelCall, answers: Answers) -> dict[str, Array]:
    """The entries that are judged under any mask.

    An answer for a whole item may belong to its first or last place, even to padding there: it is
    judged where both places hold tokens.
    """
    judged = existing_tokens(model, call, answers)
    ends = call.keep[:, 0] & call.keep[:, -1]
    for name, letters in model.outputs.items():
        if not {PADDED, ATTENDING} & {*letters} and len(judged[name]) == call.batch:
            judged[name] &= ends.reshape([-1] + [1] * (len(letters) - 1))
    return judged


def _causal_part(candidate: Candidate) -> tuple[int, ...]:
    """The attentions along the sequence whose tokens attend to earlier tokens alone."""
    model = model_of(candidate)
    along = int(model.has_two_sequences)
    own = {entry.name for entry in model.inputs if entry.along == along}
    indices = (entry["index"] for entry in model.described)
    return tuple(index for index in indices if own & model.engine.key_inputs(index))


def _is_causal(candidate: Candidate) -> str:
    """Unless most of its attentions see later tokens."""
    model = model_of(candidate)
    letter = (PADDED, ATTENDING)[int(model.has_two_sequences)]
    if not any(letter in letters for letters in model.outputs.values()):
        return "none of its answers is for each token"
    flags = [model.hiding_sites[index] for index in _causal_part(candidate)]
    if not any(flags):
        return "none of its attentions hides later tokens"
    if 2 * sum(flags) < len(flags):
        return "most of its attentions see every token, as an encoder's do"
    return ""


@clause(
    "model.causality",
    sentence="In a model whose attentions hide later tokens no token changes an earlier answer.",
    source="by definition of an autoregressive model: Radford et al. 2019 (GPT-2), section 2",
    space=MODELS.replace(least=(("query_length", 2), ("key_length", 2))),
    counterfactual="an answer that a token does not change at its own place",
    applies=(_has_tokens, _is_causal),
    explained=False,
)
def causality(subject: Subject, problem: Problem) -> Finding:
    """New tokens from a place on: earlier answers stay. Quantised models have their rules read."""
    model = model_of(subject.candidate)
    if model.engine.quantised:
        for entry in model.described:
            if entry["misplaced"] in LOOKING_AHEAD:
                where = named(model, entry["index"])
                said = f"in {where} a query sees {entry['misplaced']}"
                return blaming(violated("value", said), entry["index"])
        return Finding(inapplicable=_JOINED)
    call = drawn_call(subject, problem)
    along = int(model.has_two_sequences)
    letter, length = (PADDED, ATTENDING)[along], call.lengths[along]
    first = 1 + problem.seed % (length - 1)
    later = np.broadcast_to(np.arange(length) >= first, (call.batch, length))
    other = model.with_tokens(call, later, problem.seed + 1, along=along)
    answers, changed = run(model, call), run(model, other)
    allowed = allowed_of_alike(model, call, answers)
    before, after = {}, {}
    for name, letters in model.outputs.items():
        places = [place for place, own in enumerate(letters) if own == letter]
        grid = np.indices(answers[name].shape, sparse=True)
        both = [grid[place] < first for place in places]
        shape = answers[name].shape
        before[name] = np.broadcast_to(
            np.logical_and.reduce(both) if places else np.zeros(1, bool), shape
        )
        after[name] = ~before[name] if places else before[name]
    binding = shows(answers, changed, allowed, after)
    wording = f"a token from place {first} on changes the answer"
    comparison = agreement(model, answers, changed, allowed, before, wording)
    early = dataclasses.replace(call, keep=~later) if along == 0 else call
    return differing(model, comparison, (early, other), binding=binding)


@clause(
    "model.batch-independence",
    sentence="A model answers an item in a batch as it answers it alone, and in any order.",
    source="onnxruntime#6044: batches differ from single sequences; He et al. 2025",
    space=MASKED.replace(mask="offered", least=(("batch", 2),)),
    counterfactual="the answer to another item",
    applies=(apart,),
    explained=False,
)
def batch_independence(subject: Subject, problem: Problem) -> Finding:
    """The items in reverse order, and one item alone where the model takes a batch of one."""
    model = model_of(subject.candidate)
    call = drawn_call(subject, problem)
    answers = run(model, call)
    allowed = allowed_differences(model, call, answers)
    judged = existing_tokens(model, call, answers)
    order = list(range(call.batch))[::-1]
    reordered = run(model, model.items(call, order))
    turned = {name: value[order] for name, value in reordered.items()}
    wording = "the order of the items changes the answer"
    worst = agreement(model, answers, turned, allowed, judged, wording)
    item = problem.seed % call.batch
    if model.takes(1, call.lengths):
        alone = run(model, model.items(call, [item]))
        own = {name: value[[item]] for name, value in answers.items()}
        wording = "an item is answered otherwise in its batch than alone"
        part = {name: value[[item]] for name, value in judged.items()}
        found = agreement(model, alone, own, allowed, part, wording)
        worst = max(worst, found, key=lambda one: one.margin)
    others = {name: np.roll(value, 1, axis=0) for name, value in answers.items()}
    return differing(model, worst, binding=shows(answers, others, allowed, judged))
