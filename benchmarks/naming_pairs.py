"""Two mistakes of the catalogue made at once, and whether the diagnosis says what is true of them.

A name is right where it is one of the two, or both; and where what it says, acted out, answers as
the pair does on problems that the diagnosis has not seen. That the scale is off is right where a
factor on the logits explains what is wrong there.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch

from conformance import Candidate, Semantics, core, layer
from conformance.clauses.subject import Subject
from conformance.diagnosis import Diagnostician
from conformance.diagnosis.agreement import BatteryAnswer
from conformance.diagnosis.battery import answers_near, battery
from conformance.diagnosis.mistaken_answer import Combination, act
from conformance.diagnosis.mistakes import MISTAKES, NamedMistake, NotExpressible, touches_any
from conformance.diagnosis.neighbours import OWN
from conformance.diagnosis.scale_diagnosis import scale_entry
from conformance.diagnosis.statement_search import Explanation, explains
from conformance.oracle.oracle import Oracle, evaluate
from conformance.problems.inputs import Inputs
from conformance.tools.teeth.mistaken_candidates import ActedCore, ActedLayer, Evaluation

STANDARD: Final = Semantics()
# The name that says no more than that the logits are multiplied by a wrong number.
SCALE_OFF: Final = "scale-off"
# Ways of one name that are drawn from.
WAYS: Final = 3
# Problems of the battery near which others are drawn that the diagnosis has not seen.
UNSEEN_NEAR: Final = 4
# Added to the seeds of those problems.
OTHER_VALUES: Final = 104_729


@dataclass(frozen=True, kw_only=True)
class Promises:
    """What a candidate declares that makes two mistakes."""

    kind: str
    masks: tuple[str, ...]
    causal: str | None
    features: tuple[str, ...]
    semantics: Semantics = STANDARD
    empty_rows: str = "zeros"

    def candidate(self, made: Combination = ()) -> Candidate:
        """A candidate that makes some mistakes wherever they can be made."""
        point = self.semantics
        if self.causal:
            point = point.replace(causal_alignment=self.causal)
        oracle = Oracle(self.candidate().declaration, "float64") if made else None

        def answer(inputs: Inputs) -> Evaluation:
            if oracle is None:
                return evaluate(inputs, point.replace(empty_rows=self.empty_rows))
            declared = oracle.declaration.semantics
            right = evaluate(inputs, declared)  # it refuses shapes that do not belong together
            try:
                return act(oracle, declared, made, inputs)
            except NotExpressible:
                return right

        decorate = (core if self.kind == "core" else layer)(
            name="+".join(one.name for one in made) or "right",
            masks=self.masks,
            causal=self.causal,
            empty_rows=self.empty_rows,
            features=self.features,
            semantics=point,
        )
        return decorate(ActedCore(answer) if self.kind == "core" else ActedLayer.of(answer))


PROMISES: Final = (
    Promises(
        kind="core",
        masks=("keep", "bias"),
        causal="bottom-right",
        features=("scale", "gqa"),
    ),
    Promises(
        kind="core",
        masks=("drop",),
        causal="top-left",
        features=("softcap", "window", "scale"),
    ),
    Promises(
        kind="core",
        masks=("lengths",),
        causal="bottom-right",
        features=("gqa", "kv_cache"),
    ),
    Promises(
        kind="core",
        masks=("keep_int",),
        causal="bottom-right",
        features=("sinks", "window"),
    ),
    Promises(
        kind="core",
        masks=("keep",),
        causal="bottom-right",
        features=("gqa",),
        semantics=Semantics(rotary="halves", qk_norm="rms"),
    ),
    Promises(
        kind="core",
        masks=("bias",),
        causal="bottom-right",
        features=(),
        semantics=Semantics(alibi=True),
        empty_rows="nan",
    ),
    Promises(kind="layer", masks=("keep",), causal="bottom-right", features=("gqa",)),
    Promises(
        kind="layer",
        masks=("bias",),
        causal=None,
        features=("softcap",),
        semantics=Semantics(rotary="interleaved"),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two mistakes that one candidate makes."""

    made: Combination
    promises: Promises

    @property
    def name(self) -> str:
        """The names of the two."""
        return "+".join(one.name for one in self.made)


def drawn_pair(number: int, seed: int) -> Pair:
    """A random pair, with a declaration under which both mistakes show beside the other."""
    draw = random.Random(f"{seed}/{number}")  # noqa: S311 (no secret is drawn)
    usual = _usual_ways()
    names = sorted(usual)
    while True:
        one, two = (draw.choice(usual[name]) for name in draw.sample(names, 2))
        for promises in draw.sample(PROMISES, len(PROMISES)):
            if _both_show(promises, one, two):
                return Pair(made=(one, two), promises=promises)


@cache
def _usual_ways() -> dict[str, list[NamedMistake]]:
    """The first ways to make each mistake of the catalogue."""
    usual: dict[str, list[NamedMistake]] = {}
    for mistake in MISTAKES:
        ways = usual.setdefault(mistake.name, [])
        if len(ways) < WAYS:
            ways.append(mistake)
    return usual


@cache
def _problems(promises: Promises) -> tuple[Subject, list[Inputs]]:
    """A right candidate's subject, and every third problem of its battery."""
    subject = Subject(promises.candidate(), "float32")
    return subject, list(battery(subject))[::3]


def _both_show(promises: Promises, one: NamedMistake, two: NamedMistake) -> bool:
    """Whether each of two mistakes changes what the other alone would answer."""
    subject, problems = _problems(promises)
    point = subject.declaration.semantics
    if set(one.changes) & set(two.changes):
        return False
    if any(
        not m.speaks_at(point) or (m.changes and m.changed_point(point) == point)
        for m in (one, two)
    ):
        return False
    return _shows_beside(subject, problems, one, two) and _shows_beside(subject, problems, two, one)


def _shows_beside(
    subject: Subject, problems: Sequence[Inputs], one: NamedMistake, other: NamedMistake
) -> bool:
    point, oracle = subject.declaration.semantics, subject.oracle
    for inputs in problems:
        if not touches_any((one,), inputs, point):
            continue
        try:
            both = act(oracle, point, (one, other), inputs)
            alone = act(oracle, point, (other,), inputs)
        except NotExpressible:
            continue
        if both.output.shape != alone.output.shape:
            return True
        room = 100.0 * torch.finfo(torch.float32).eps * alone.output.abs().clamp_min(1.0)
        if bool(((both.output - alone.output).abs() > room).any()):
            return True
    return False


def diagnosed_pair(number: int, seed: int) -> dict[str, Any]:
    """What a drawn pair is called, and which of the names are wrong."""
    torch.set_num_threads(1)
    pair = drawn_pair(number, seed)
    subject = Subject(pair.promises.candidate(pair.made), "float32")
    diagnostician = Diagnostician(subject)
    said = diagnostician.explanations
    unseen = unseen_answers(subject, diagnostician.observed) if said else []
    wrong = [one.entry["name"] for one in said if not _is_right(subject, pair, one, unseen)]
    return {
        "made": f"{pair.name} ({pair.promises.kind})",
        "truth": "; ".join(one.sentence for one in pair.made),
        "names": [one.entry["name"] for one in said],
        "texts": [one.entry["text"] for one in said],
        "wrong": wrong,
        "outcome": "wrong" if wrong else "right" if said else "unknown",
    }


def _is_right(
    subject: Subject, pair: Pair, said: Explanation, unseen: Sequence[BatteryAnswer]
) -> bool:
    if said.entry["name"] == SCALE_OFF:
        return scale_entry(subject, [(one.inputs, one.output) for one in unseen]) is not None
    names = {one.name for one in said.made}
    if names and names <= {one.name for one in pair.made}:
        return True
    return bool(said.made) and all(explains(subject, said.made, answer) for answer in unseen)


def unseen_answers(subject: Subject, observed: Sequence[BatteryAnswer]) -> list[BatteryAnswer]:
    """Answers to problems near some of the battery, with values that the diagnosis has not seen."""
    problems = [answer.problem for answer in observed if answer.problem is not None]
    chosen = problems[:: max(len(problems) // UNSEEN_NEAR, 1)]
    return [
        answer
        for problem in chosen
        for answer in answers_near(
            subject, problem.replace(seed=problem.seed + OTHER_VALUES), (OWN,)
        )
    ]
