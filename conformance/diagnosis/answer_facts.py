"""What is true of answers: whether chance or a device's streams decide them, where they err."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ..base.mistake import NO_MISTAKE, UNKNOWN
from ..calls.calling import Answer, Arguments, CandidateFailure, Forward
from ..calls.devices import CPU, forked_random, kind_of, seed_random, synchronise
from ..clauses.modules import COUNTED, equal_tokens, shares_of
from ..clauses.subject import Differentiator, Subject
from ..oracle.comparison import AXES
from ..problems.edges import edge_problems
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from ..tolerance import model
from .agreement import BatteryAnswer
from .battery import answer_to
from .conditions import CONDITIONS
from .dissection.influence import influence_facts
from .dissection.reading import in_digits
from .wrong_problems import which_go_wrong

_AXIS_NAMES: Final = {
    "batch": ("batch item", "batch items"),
    "head": ("head", "heads"),
    "query": ("query", "queries"),
    "channel": ("channel", "channels"),
}
# A larger multiple of the bound says nothing more to a person.
MOST_BOUNDS: Final = 1e6
DROPOUT: Final = "dropout-left-on"
RANDOM: Final = "random-answers"
_FIX: Final = (
    "drop nothing unless a call asks for it: dropout_p=self.dropout if self.training else 0.0"
)
# So often that a race, which has few answers, hardly gives one to each seed.
_SEEDS: Final = (1, 2) * 6
UNORDERED: Final = "streams-not-ordered"
UNREPEATABLE: Final = "answers-not-repeatable"
# How often a call must be right when its device is waited for, before its streams are blamed.
_TIMES: Final = 4
# How often a failing call is made again, and how often where it seemed to fail each time.
_MADE_AGAIN: Final = 16
_AT_FIRST: Final = 3


def unknown_entry(
    subject: Subject,
    observed: Sequence[BatteryAnswer],
    shown: BatteryAnswer | None,
    *,
    said_at: str = "",
    further: Sequence[BatteryAnswer] = (),
) -> dict[str, Any]:
    """The report's entry for a mistake without a name, with every fact about it.

    ``shown`` is the failing problem that is to be explained, if there is one. ``said_at`` is the
    clause whose entry has said what all wrong answers have in common: it is not said again. No such
    thing is said that ``further`` answers contradict.
    """
    further = [*further, *([] if shown is None else [shown])]
    facts, common, example = _gather(subject, observed, shown, further, only_shown=bool(said_at))
    texts = [*common[:1], *example, *common[1:]]
    sentence = NO_MISTAKE
    if said_at:
        sentence += f" ({said_at} says what the wrong answers have in common)"
    return {
        "name": UNKNOWN,
        "text": f"{sentence}: {'; '.join(texts)}" if texts else sentence,
        "fix": "",
        "confidence": 0.0,
        "facts": facts,
        "common": "; ".join(common),
        "example": "; ".join(example),
    }


def lost_search_entry(fault: str) -> dict[str, Any]:
    """The report's entry where the search for a name was cut off by a mistake of this harness."""
    return unnamed_entry(
        f"the search for a name ended with an error of ours, {fault}: please report it"
    )


def unnamed_entry(text: str) -> dict[str, Any]:
    """The report's entry where no name was found, and why not."""
    return {"name": UNKNOWN, "text": text, "fix": "", "confidence": 0.0, "facts": {}}


def _gather(
    subject: Subject,
    observed: Sequence[BatteryAnswer],
    shown: BatteryAnswer | None,
    further: Sequence[BatteryAnswer],
    *,
    only_shown: bool,
) -> tuple[dict[str, Any], list[str], list[str]]:
    """The facts as data, and as sentences on all wrong answers and on the one that is shown.

    With ``only_shown`` there are none on all.
    """
    wrong = [answer for answer in observed if answer.margin > 1.0]
    facts: dict[str, Any] = {"asked": len(observed), "wrong": len(wrong)}
    common: list[str] = []
    example: list[str] = []
    one = shown if shown is not None else _plainest(wrong)
    if shown is not None and shown.margin <= 1.0:
        right = "the plain answer to this problem is right"
        example.append(right if wrong else f"{right}: only what the clause changes shows")
        facts["plain_answer"] = "right"
        one = None if only_shown else _plainest(wrong)
    if wrong and not only_shown:
        common.append(which_go_wrong(facts, observed, wrong, further))
    if one is not None:
        which = "this example" if one is shown else "the plainest wrong problem"
        example += _of_answer(subject, facts, one, which)
    if not only_shown:
        if one is not None:
            facts["repeats"] = repeats(subject, one)
            if not facts["repeats"]:
                common.append("a second call with the same inputs gives another answer")
        common += _values_of_one(subject, facts, wrong)
        common += _stray_influence(subject, facts, wrong)
    return facts, common, example


def _plainest(wrong: Sequence[BatteryAnswer]) -> BatteryAnswer | None:
    """The wrong answer to the problem that meets the fewest conditions."""
    return min(
        wrong,
        key=lambda answer: sum(one.holds(answer.inputs) for one in CONDITIONS),
        default=None,
    )


def _of_answer(
    subject: Subject, facts: dict[str, Any], answer: BatteryAnswer, which: str
) -> list[str]:
    """Where one answer is wrong, and by how much."""
    exact = subject.golden(answer.inputs)
    wrong = answer.wrong
    if wrong is None:
        facts["shape"] = list(answer.output.shape)
        facts["expected_shape"] = list(exact.output.shape)
        return [f"its shape is {facts['shape']} where {facts['expected_shape']} is expected"]
    if not bool(wrong.any()):
        return []
    texts = _where(facts, wrong, which)
    rows = exact.empty_rows.expand(wrong.shape)
    if bool((wrong & rows).any()) and not bool((wrong & ~rows).any()):
        facts["rows"] = "without keys"
        texts.append("only rows without keys are wrong")
    broken = int((wrong & ~torch.isfinite(answer.output)).sum())
    facts["not_finite"] = broken
    if broken:
        texts.append(f"{broken} of {wrong.numel()} elements are not finite")
    finite = wrong & torch.isfinite(answer.output) & torch.isfinite(exact.output)
    if bool(finite.any()):
        texts += _sizes(facts, answer.output[finite], exact.output[finite], exact.bound[finite])
    return texts


def _where(facts: dict[str, Any], wrong: Tensor, which: str) -> list[str]:
    """The indices along each axis that hold anything wrong."""
    facts["affected"], texts = {}, []
    for number, axis in enumerate(AXES.get(wrong.dim(), ())):
        others = [other for other in range(wrong.dim()) if other != number]
        hit = wrong.sum(dim=others) > 0
        indices = [int(index) for index in hit.nonzero().flatten()]
        count = wrong.shape[number]
        facts["affected"][axis] = "all" if len(indices) == count else indices
        if len(indices) < count:
            name = _AXIS_NAMES[axis][len(indices) > 1]
            texts.append(f"{name} {_listed(indices)} (of 0 to {count - 1})")
    place = " and ".join(texts)
    return [
        f"{which} goes wrong only at {place}" if texts else "no batch item, head or row is spared"
    ]


def _listed(indices: list[int]) -> str:
    few = 8
    shown = ", ".join(str(index) for index in indices[:few])
    return f"{shown}, …" if len(indices) > few else shown


def _sizes(facts: dict[str, Any], actual: Tensor, expected: Tensor, bound: Tensor) -> list[str]:
    """Magnitudes: the largest error, a constant ratio, a constant difference."""
    error = (actual - expected).abs()
    facts["largest_error"] = float(error.max())
    texts = [f"the largest error is {facts['largest_error']:.3g}{_in_bounds(facts, error, bound)}"]
    if not bool(actual.any()):
        facts["answer"] = "zero"
        return [*texts, "the answer is zero there"]
    if actual.numel() < model.FEWEST_FITTED:
        return texts
    factor = float((actual * expected).sum() / expected.square().sum().clamp_min(model.LOST_WEIGHT))
    if _nothing_left(actual - factor * expected, error):
        facts["ratio"] = factor
        texts.append(f"it is {factor:.6g} times what is expected")
    shift = float((actual - expected).mean())
    if _nothing_left(actual - expected - shift, error):
        facts["difference"] = shift
        texts.append(f"it differs by {shift:+.6g} throughout")
    return texts


def _in_bounds(facts: dict[str, Any], error: Tensor, bound: Tensor) -> str:
    """The largest error as a multiple of what is allowed, where anything is."""
    allowed = bound > 0.0
    if not bool(allowed.any()):
        return " where the answer must be exact"
    times = float((error[allowed] / bound[allowed]).max())
    facts["largest_error_in_bounds"] = times
    if times > MOST_BOUNDS:
        return ", more than a million times what is allowed"
    return f", up to {times:.3g} times what is allowed"


def _nothing_left(left: Tensor, error: Tensor) -> bool:
    return float(left.square().sum()) <= model.NEARLY_NOTHING * float(error.square().sum())


def repeats(subject: Subject, answer: BatteryAnswer) -> bool:
    """Whether a second call with the same inputs gives the same answer, to within its bound."""
    again = answer_to(subject, answer.inputs)
    if again is None or again.output.shape != answer.output.shape:
        return False
    exact = subject.golden(answer.inputs)
    fits = exact.output.shape == answer.output.shape
    bound = exact.bound if fits else torch.zeros_like(answer.output)
    differs = (again.output - answer.output).abs() > bound
    return not bool((differs & torch.isfinite(again.output)).any())


def _stray_influence(
    subject: Subject, facts: dict[str, Any], wrong: Sequence[BatteryAnswer]
) -> list[str]:
    """Whose values the answers are made of besides their own, at the plainest wrong problem."""
    plain = next((one for one in wrong if not one.inputs.masked and one.inputs.generic), None)
    if plain is None or facts.get("repeats") is False:
        return []
    texts = influence_facts(subject, plain.inputs)
    facts["influence"] = texts
    return texts


def _values_of_one(
    subject: Subject, facts: dict[str, Any], wrong: Sequence[BatteryAnswer]
) -> list[str]:
    """A core's answer to values that are all one, which must stay so."""
    plain = next((answer for answer in wrong if not answer.inputs.masked), None)
    if plain is None or plain.inputs.is_layer or facts.get("repeats") is False:
        return []
    ones = plain.inputs.with_tokens(value=torch.ones_like(plain.inputs.value))
    try:
        sums = subject.answer(ones).double()
    except CandidateFailure:
        return []
    exact = subject.golden(ones)
    least, most = float(sums.min()), float(sums.max())
    right = bool(((sums - exact.output).abs() <= exact.bound).all())
    facts["ones_stay"] = right
    if right:
        # Of rows whose answer is zero that says nothing: they are not wrong at these values.
        return [] if facts.get("answer") == "zero" else ["values that are all one stay so"]
    facts["ones_become"] = [least, most]
    return [f"values that are all one become {in_digits(least)} to {in_digits(most)}"]


def on_device_alone(
    subject: Subject, entries: list[dict[str, Any]], problem: Problem | None
) -> list[dict[str, Any]]:
    """The entries of a failure; each says so where the same call is answered rightly on the CPU."""
    declared = subject.candidate.declared_on or subject.declaration.devices
    kinds = {kind_of(name) for name in declared}
    if problem is None or kind_of(subject.device) == CPU or CPU not in kinds:
        return entries
    there, here = (
        answer_to(one, one.inputs(problem.replace(device=one.device)))
        for one in (subject, Subject(subject.candidate, subject.dtype, CPU, sealed=subject.sealed))
    )
    if there is None or here is None or there.margin <= 1.0 or here.margin > 1.0:
        return entries
    alone = f"on {subject.device} alone: on the CPU this call is answered rightly"
    return [{**entry, "text": f"{entry['text']}; {alone}"} for entry in entries]


class Chance:
    """Finds what chance decides in answers: when a device's streams work, or random numbers."""

    def __init__(self) -> None:
        self._unordered: set[Subject] = set()
        self._random: dict[Subject, dict[str, Any] | None] = {}
        self._unrepeatable: set[Subject] = set()

    def entry(
        self,
        subject: Subject,
        problem: Problem,
        fails: Callable[[Subject], bool],
        *,
        numbers: bool,
    ) -> dict[str, Any] | None:
        """The report's entry, None where chance decides nothing.

        ``fails`` asks a subject the failing problem; ``numbers`` says whether random numbers may
        make it fail. They are looked for once.
        """
        unordered = unordered_entry(subject, fails, proven=subject in self._unordered)
        if unordered is not None:
            self._unordered.add(subject)
            return unordered
        if numbers and subject not in self._random:
            self._random[subject] = None
            self._random[subject] = random_entry(subject, problem)
        return self._random.get(subject) if numbers else None

    def unrepeatable(
        self, subject: Subject, fails: Callable[[Subject], bool]
    ) -> dict[str, Any] | None:
        """The entry of a failure that no mistake explains, and that does not occur each time."""
        with forked_random(subject.device):
            failed = []
            for _ in range(_MADE_AGAIN):
                seed_random(subject.device, _SEEDS[0])
                failed.append(fails(subject))
                once = subject in self._unrepeatable or not all(failed)
                if len(failed) == _AT_FIRST and not once:
                    return None
        if all(failed):
            return None
        self._unrepeatable.add(subject)
        return {
            "name": UNREPEATABLE,
            "text": f"the same call goes wrong in {sum(failed) + 1} of {len(failed) + 1} attempts, "
            "with the same inputs and the same seed: something else decides its answer",
            "fix": "look for a race (two threads or programs that write one place), memory that is "
            "read before it is written, a clock, or something kept between calls",
            "confidence": 1.0,
        }


def random_entry(subject: Subject, problem: Problem) -> dict[str, Any] | None:
    """What makes a candidate answer at random, None where torch's seed decides nothing.

    It answers the failing problem, and one of equal keys and equal values: every row of that
    returns as many values as were kept, which distinguishes dropout from other random numbers.
    """
    if not subject.candidate.golden_known or subject.candidate.kind == "positions":
        return None
    problems = edge_problems(subject.candidate, COUNTED, dtype=subject.dtype, most=1)
    counted = [
        equal_tokens(subject.inputs(each.replace(device=subject.device))) for each in problems
    ]
    with subject.recorded(None):
        for inputs in (*counted, subject.inputs(problem)):
            answer = _decided_by_seed(subject, inputs)
            if answer is not None:
                dropped = _dropped(subject, inputs, answer) if inputs in counted else ""
                return _entry(dropped)
    return None


class Waiting(Subject):
    """A subject whose device is waited for before or after each call, or both."""

    def __init__(self, subject: Subject, *, before: bool, after: bool) -> None:
        vars(self).update(vars(subject))
        self.before, self.after = before, after
        self.gradients = Differentiator(self)

    def forward(self, inputs: Inputs) -> Forward:
        """The candidate's own, between two moments at which its device has nothing left to do."""
        return self._waiting(super().forward(inputs))

    def call_with(self, forward: Forward, call_arguments: Arguments, inputs: Inputs) -> Answer:
        """The call of any forward, such as one that was built for gradients, in the same way."""
        return super().call_with(self._waiting(forward), call_arguments, inputs)

    def _waiting(self, own: Forward) -> Forward:
        def waiting(*positional: Any, **keywords: Any) -> Any:
            if self.before:
                synchronise(self.device)
            returned = own(*positional, **keywords)
            if self.after:
                synchronise(self.device)
            return returned

        return waiting


def unordered_entry(
    subject: Subject, fails: Callable[[Subject], bool], *, proven: bool
) -> dict[str, Any] | None:
    """What is said of answers that are wrong unless their device is waited for; None for others.

    ``fails`` asks a subject the failing problem. That must fail again, unless such a failure of the
    candidate is ``proven`` already: whether work comes too late is chance.
    """
    if kind_of(subject.device) == CPU:
        return None

    def right(*, before: bool, after: bool) -> bool:
        waiting = Waiting(subject, before=before, after=after)
        return not any(fails(waiting) for _ in range(_TIMES))

    again = proven or any(fails(subject) for _ in range(_TIMES))
    if not again or not right(before=True, after=True):
        return None
    stream = f"torch.{kind_of(subject.device)}.current_stream()"
    if right(before=True, after=False):
        what = "its work starts before its inputs are there, on a stream that does not wait for"
    elif right(before=False, after=True):
        what = (
            "its answer is read before it is there: the stream that computes it is not awaited by"
        )
    else:
        what = "its work runs on a stream that neither waits for, nor is awaited by,"
    return {
        "name": UNORDERED,
        "text": f"{what} the current one; where the device is waited for the answer is right",
        "fix": f"work on {stream}, or order the two streams: other.wait_stream(current) before the "
        "work, current.wait_stream(other) after it",
        "confidence": 1.0,
    }


def _entry(dropped: str) -> dict[str, Any]:
    if dropped:
        text = f"dropout is left on: {dropped}, in a call that asks for none"
        return {"name": DROPOUT, "text": text, "fix": _FIX, "confidence": 1.0}
    text = "the answer is random: it differs with torch's seed, in calls that ask for no dropout"
    fix = "draw no random numbers outside training; is some dropout left on?"
    return {"name": RANDOM, "text": text, "fix": fix, "confidence": 1.0}


def _decided_by_seed(subject: Subject, inputs: Inputs) -> Tensor | None:
    """An answer where equal seeds give the same one and others do not; None elsewhere."""
    answers = []
    try:
        forward = subject.forward(inputs)
        with forked_random(subject.device):
            for seed in _SEEDS:
                seed_random(subject.device, seed)
                answers.append(subject.call(forward, inputs).output)
    except CandidateFailure:
        return None
    first, other = answers[:2]
    exact = subject.golden(inputs)
    judged = exact.judged.expand(exact.bound.shape)
    differs = ((first.double() - other.double()).abs() > exact.bound) & judged
    same = all(
        torch.equal(answer.nan_to_num(), answers[_SEEDS.index(seed)].nan_to_num())
        for seed, answer in zip(_SEEDS, answers, strict=True)
    )
    return first.double() if same and bool(differs.any()) else None


def _dropped(subject: Subject, inputs: Inputs, answer: Tensor) -> str:
    """What was dropped of a problem of equal tokens, with which probability; "" if nothing was."""
    shares, slack = shares_of(subject, inputs, answer)
    if shares is None:
        return ""
    if not bool(shares.isfinite().all()):
        return ""
    if _differ(shares, slack):
        elements = "single elements of the answer are dropped"
        return elements if _all_or_nothing(shares, slack) else ""
    keys = inputs.geometry.key_length
    steps = shares.flatten().sort().values.diff()
    steps = steps[steps > 2.0 * float(slack.max())]
    if not steps.numel():
        return ""
    kept = 1.0 / (keys * float(steps.min()))
    counts = shares * keys * kept
    if bool(((counts - counts.round()).abs() > model.COUNTABLE).any()):
        return ""
    dropped, rescaled = 1.0 - kept, ""
    if dropped <= float(slack.max()):  # the rest does not make up for it
        dropped, rescaled = 1.0 - float(shares.mean()), " and not rescaled"
    return f"attention weights are dropped with a probability of {dropped:.2g}{rescaled}"


def _all_or_nothing(shares: Tensor, slack: Tensor) -> bool:
    """Whether some elements are zero and all others the same multiple of what they should be."""
    dropped = shares.abs() <= slack
    kept = shares[~dropped]
    if not kept.numel() or not bool(dropped.any()):
        return False
    return bool(((kept - kept.mean()).abs() <= 2.0 * float(slack.max())).all())


def _differ(shares: Tensor, slack: Tensor) -> bool:
    """Whether channels of one row, which only a core shows, were dropped independently."""
    if shares.dim() != len("BHLD"):
        return False
    return bool(((shares - shares[..., :1]).abs() > 2.0 * slack).any())


def shared_confidence(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The confidence shared among equivalent names."""
    return [{**entry, "confidence": entry["confidence"] / len(entries)} for entry in entries]
