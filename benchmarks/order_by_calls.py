"""The steps in which clauses are asked of a candidate whose calls are slow, or under a limit.

``python benchmarks/order_by_calls.py --write`` asks wrong attentions, some of the catalogue and
some of ``naming_corpus``, one example of every MUST clause, and 32 of the clauses that find most,
and counts the calls. It writes ``conformance/session/steps.json``: clauses with the number of
examples after which the next step comes, the most mistakes that are new for each call first.
What was measured is kept in a file, as far as it has come.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Final

import torch
from first_failure import ENDS, breaks_must
from naming_corpus import MUTANTS, load

import conformance.session
from conformance.base.profile import PROFILES
from conformance.calls.calling import before_each_call
from conformance.declare.candidate import Candidate
from conformance.running.clause_run import ClauseRun
from conformance.running.runner import CandidateRun
from conformance.tools.teeth.jobs import TeethOptions, entries

STEPS: Final = Path(conformance.session.__file__).with_name("steps.json")
# Examples after which another clause may be worth more.
STOPS: Final = (0, 1, 2, 4, 8, 16, 32)
# What a mistake counts for that is found already.
AGAIN: Final = 0.1
# Clauses of which more than the first example is asked.
DEEP: Final = 12
# Steps that are kept; in the rest of a run all clauses take turns.
LONGEST: Final = 60
# Of a mistake: by clause the calls of each example, and which example failed (0: none of them).
Asked = dict[str, tuple[list[int], int]]


def asked(candidate: Candidate, slugs: Sequence[str] | None, most: int) -> Asked:
    """What a candidate's first examples cost and show, of all MUST clauses or of some."""
    torch.set_num_threads(1)
    run = CandidateRun(
        candidate,
        profile=PROFILES["quick"],
        dtypes=candidate.declaration.dtypes[:1],
        explain=False,
    )
    shown: Asked = {}
    for planned in run.planned():
        unasked = planned.reason or planned.level != "MUST"
        if unasked or planned.device != run.devices[0] or (slugs and planned.id not in slugs):
            continue
        counts: list[int] = []

        def count(counts: list[int] = counts) -> None:
            counts[-1] += 1

        def begin(_problem: object, _tally: object, counts: list[int] = counts) -> None:
            counts.append(0)

        with before_each_call(count):
            result = run.run(planned, clause_run=ClauseRun(most=most, on_example=begin))
        shown[planned.id] = counts, result.examples if result.status == "failed" else 0
    return shown


def drawn(count: int, seed: int) -> dict[str, Candidate]:
    """As many mistakes of the catalogue and of the corpus of kernels, by name."""
    draw = random.Random(seed)  # noqa: S311 (no secret)
    every = entries(TeethOptions(targets=(), thorough=False), lambda _what, _name: None)
    fit = [e for e in every if not e.correct and e.primary not in ENDS and breaks_must(e)]
    chosen = {e.name: e.candidate for e in draw.sample(fit, min(count, len(fit)))}
    return chosen | {m.name: load(m) for m in draw.sample(list(MUTANTS), min(count, len(MUTANTS)))}


def _of_part(
    part: tuple[int, int], count: int, seed: int, slugs: Sequence[str] | None, most: int
) -> dict[str, Asked]:
    """What a part of the mistakes shows: candidates cannot be sent to another process."""
    number, parts = part
    every = list(drawn(count, seed).items())[number::parts]
    shown: dict[str, Asked] = {}
    for name, candidate in every:
        shown[name] = asked(candidate, slugs, most)
    return shown


def measured(
    count: int, seed: int, jobs: int, slugs: Sequence[str] | None, most: int
) -> dict[str, Asked]:
    """What all mistakes show."""
    ask = partial(_of_part, count=count, seed=seed, slugs=slugs, most=most)
    with ProcessPoolExecutor(jobs) as pool:
        return {
            name: own
            for each in pool.map(ask, [(number, jobs) for number in range(jobs)])
            for name, own in each.items()
        }


def steps(shown: Mapping[str, Asked]) -> list[tuple[str, int]]:
    """Clauses and numbers of examples, the most mistakes that are new for each call first."""
    calls: dict[str, list[float]] = defaultdict(list)
    for own in shown.values():
        for slug, (counts, _) in own.items():
            calls[slug] += counts
    cost = {slug: mean(counts) for slug, counts in calls.items() if counts}
    chosen: list[tuple[str, int]] = []
    stop = dict.fromkeys(cost, 0)
    left = set(shown)
    while len(chosen) < LONGEST and (step := _best(shown, left, cost, stop)):
        slug, examples = step
        stop[slug] = examples
        chosen.append(step)
        left -= set(_found(shown, left, slug, examples))
    return chosen


def _best(
    shown: Mapping[str, Asked], left: set[str], cost: Mapping[str, float], stop: Mapping[str, int]
) -> tuple[str, int] | None:
    """The step that finds the most for each call, None where none finds anything.

    What is found already counts a little: what finds much of that finds what no sample has.
    """

    def finds(slug: str, end: int) -> float:
        fresh = len(_found(shown, left, slug, end))
        again = len(_found(shown, shown.keys() - left, slug, end))
        before = len(_found(shown, shown.keys() - left, slug, stop[slug]))
        return fresh + AGAIN * (again - before)

    worth = {
        (slug, end): finds(slug, end) / ((end - stop[slug]) * max(each, 1.0))
        for slug, each in cost.items()
        for _, end in pairwise(STOPS)
        if end > stop[slug]
    }
    best = max(worth, key=lambda step: (worth[step], step), default=None)
    return best if best is not None and worth[best] > 0.0 else None


def _found(shown: Mapping[str, Asked], names: Iterable[str], slug: str, examples: int) -> list[str]:
    return [n for n in names if slug in shown[n] and 0 < shown[n][slug][1] <= examples]


def main() -> None:
    """Measure, and print the steps or write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=75, help="mistakes of either kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--matrix", type=Path, default=Path("order_by_calls.json"))
    parser.add_argument("--write", action="store_true", help=f"write {STEPS.name}")
    options = parser.parse_args()
    if options.matrix.exists():
        shown: dict[str, Asked] = json.loads(options.matrix.read_text(encoding="utf-8"))
    else:
        sample = options.count, options.seed, options.jobs
        shown = measured(*sample, None, 1)
        deep = list(dict.fromkeys(slug for slug, _ in steps(shown)))[:DEEP]
        for name, own in measured(*sample, deep, STOPS[-1]).items():
            shown[name] |= own
        options.matrix.write_text(json.dumps(shown), encoding="utf-8")
    chosen = steps(shown)
    for slug, examples in chosen:
        print(f"{slug} {examples}")
    if options.write:
        STEPS.write_text(json.dumps(chosen, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
