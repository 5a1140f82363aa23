"""How soon a wrong attention is told so: the order of the clauses, and seconds to a first failure.

``python benchmarks/first_failure.py`` checks mistakes of the catalogue with ``exitfirst`` in a
process that has imported torch, and prints how many are caught, made small and named within one
second and within three. ``--by judge`` checks them through one warm ``Judge``, by the clock, and
``--by command`` those of ``candidates/broken`` by ``conformance check … --exitfirst``, each in a
process of its own, whose imports of torch and of the other mistakes do not count. ``--order`` runs
all MUST clauses on a sample of them instead, and prints the order in which clauses find mistakes
soonest, for ``conformance/session/order.py``. ``--unexplained`` leaves failures as they were drawn
and without a name, which is what a pipeline asks for that needs the verdict alone.
Run it from a checkout: the catalogue is partly in ``candidates/broken``.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

from conformance.base.record import GREEN
from conformance.base.results import ClauseResult
from conformance.clauses.registry import all_clauses
from conformance.running.workers.pool import WorkerPool
from conformance.session.schedule import WHOLE_FIRST
from conformance.tools.judge import Judge, check
from conformance.tools.teeth.jobs import (
    REPOSITORY,
    CatalogueEntry,
    LoadedEntry,
    Pace,
    TeethOptions,
    entries,
    entries_of,
    run_entries,
)

# What each mistake showed, by the MUST clauses that ran: whether one failed, its seconds, and how
# many examples it was asked.
Matrix = dict[str, dict[str, tuple[bool, float, int]]]


# The clauses that a mistake fails which hangs, or ends its process.
ENDS: Final = ("state.untampered", "state.threads")
# Seconds that a clause costs besides its examples: its first problems and goldens.
LEAST: Final = 0.05
# Clauses whose failing problems are large or of unusual values: what they show is hard to read and
# to name.
UNSUITED: Final = (
    *("any-length", "long-sequence", "typical-error", "accumulation", "accumulate", "subnormal"),
    *("near-ties", "large-logits", "lifted-logits", "large", "far-below", "key-shift"),
)
# Clauses that the order names; the others follow in the order of the specification.
LONGEST: Final = 40


def sampled(count: int, seed: int) -> list[str]:
    """The names of some mistakes of the catalogue."""
    with WorkerPool(TeethOptions(targets=(), profile="quick", thorough=False)) as pool:
        pool.start()
        every = [entry for entry in entries_of(pool.load()) if not entry.correct]
    names = sorted(entry.name for entry in every)
    return random.Random(seed).sample(names, min(count, len(names)))  # noqa: S311 (no secret)


def matrix(names: Sequence[str], jobs: int, timeout: float, path: Path) -> Matrix:
    """Every MUST clause on each mistake, kept in a file as far as it has come."""
    shown: Matrix = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    left = tuple(name for name in names if name not in shown)
    if not left:
        return shown
    options = TeethOptions(targets=(), profile="quick", thorough=False, mistakes=left)

    def keep(entry: LoadedEntry, results: Sequence[ClauseResult], complete: bool) -> None:  # noqa: FBT001
        if not complete:
            return
        shown[entry.name] = {
            one.id: (one.status == "failed", one.seconds, one.examples)
            for one in results
            if one.level == "MUST" and one.status in ("passed", "failed")
        }
        path.write_text(json.dumps(shown), encoding="utf-8")

    with WorkerPool(options, jobs=jobs, timeout=timeout) as pool:
        pool.start()
        run_entries(
            pool, entries_of(pool.load()), Pace(jobs=jobs, timeout=timeout, first=False), keep
        )
    return shown


def soonest(shown: Matrix) -> list[str]:
    """Clauses in the order that finds mistakes soonest: the most that are new for each second.

    A run that ends with its first failure asks the first few whole, then every clause one example,
    then all that is left: behind the first few come those that find what no first example shows.
    """
    took: dict[str, list[float]] = defaultdict(list)
    for clauses in shown.values():
        for slug, (failed, seconds, _) in clauses.items():
            if not failed:
                took[slug].append(seconds)
    cost = {slug: LEAST + median(seconds) for slug, seconds in took.items()}
    finding = {
        name: {slug for slug, (failed, *_) in own.items() if failed and not slug.endswith(UNSUITED)}
        for name, own in shown.items()
    }
    every = _by_finding(finding, cost)
    whole = every[:WHOLE_FIRST]
    late = {
        name: own
        for name, own in finding.items()
        if own.isdisjoint(whole) and all(shown[name][slug][2] > 1 for slug in own)
    }
    return list(dict.fromkeys([*whole, *_by_finding(late, cost), *every]))[:LONGEST]


def _by_finding(finding: Mapping[str, set[str]], cost: Mapping[str, float]) -> list[str]:
    """Clauses that find mistakes, the most that are new for each second first.

    When those chosen find every mistake, the next ones are chosen as if there were none: they find
    what is wrong where the first do not apply.
    """
    order: list[str] = []
    while unused := {slug for own in finding.values() for slug in own} - set(order):
        left = [own & unused for own in finding.values() if own & unused]
        while left:
            slugs = sorted(set.union(*left))
            best = max(
                slugs, key=lambda slug: sum(slug in own for own in left) / cost.get(slug, 1.0)
            )
            order.append(best)
            left = [own for own in left if best not in own]
    return order


SECONDS: Final = (1.0, 3.0)


@dataclass(frozen=True, kw_only=True)
class FirstFailure:
    """What a check that ends with the first failure said of a mistake, and how long it took."""

    mistake: str
    caught: bool
    clause: str
    cause: str
    seconds: float
    processor: float


def breaks_must(entry: CatalogueEntry) -> bool:
    """Whether the clause that must catch a mistake is a MUST; any clause may be where none is."""
    shown = entry.candidate.shown_kind
    levels = {clause.id: clause.level_for(shown) for clause in all_clauses()}
    return levels.get(entry.primary, "MUST") == "MUST"


class Way(ExitStack):
    """A way to check a mistake; without ``explain`` for a verdict alone."""

    def __init__(self, *, explain: bool = True) -> None:
        super().__init__()
        self.explain = explain


class InProcess(Way):
    """Checks a mistake in this process, which has imported everything."""

    def record(self, entry: CatalogueEntry) -> str:
        """The record of a check that ends with the first failure."""
        return check(entry.candidate, exitfirst=True, explain=self.explain).to_json()

    def processor(self) -> float:
        """The seconds of a processor so far."""
        return time.process_time()


class ByJudge(Way):
    """Checks a mistake through one ``Judge``, whose processes are warm."""

    def __init__(self, *, explain: bool = True) -> None:
        super().__init__(explain=explain)
        self.judge = self.enter_context(Judge())

    def record(self, entry: CatalogueEntry) -> str:
        """The record of a check that ends with the first failure."""
        return self.judge.check(entry.candidate, exitfirst=True, explain=self.explain).to_json()

    def processor(self) -> float:
        """The clock: the processes that do the work are nobody's children for long."""
        return time.perf_counter()


class ByCommand(Way):
    """Checks a mistake of ``candidates/broken`` by the command, in a process of its own."""

    def __init__(self, *, explain: bool = True) -> None:
        super().__init__(explain=explain)
        self.path = Path(self.enter_context(TemporaryDirectory())) / "record.json"
        judge = "import torch, conformance.diagnosis"
        catalogue = self._spent(f"{judge}, {REPOSITORY}") - self._spent(judge)
        self.importing = self._spent("import torch") + catalogue

    def _spent(self, code: str) -> float:
        """The seconds of a processor that a new process takes for some code."""
        before = self.processor()
        subprocess.run([sys.executable, "-c", code], check=True)
        return self.processor() - before

    def record(self, entry: CatalogueEntry) -> str:
        """The record of a check that ends with the first failure."""
        files = (m for n, m in sys.modules.items() if n.startswith(f"{REPOSITORY}."))
        target = next(f"{one.__file__}:{entry.name}" for one in files if hasattr(one, entry.name))
        options = ("--exitfirst", "--profile", "quick", "--json", str(self.path))
        command = [sys.executable, "-m", "conformance", "check", target, *options]
        subprocess.run(command, check=False, capture_output=True)
        return self.path.read_text(encoding="utf-8")

    def processor(self) -> float:
        """The seconds of a processor of the processes so far."""
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return ended.ru_utime + ended.ru_stime


WAYS: Final[Mapping[str, type[InProcess | ByJudge | ByCommand]]] = {
    "check": InProcess,
    "judge": ByJudge,
    "command": ByCommand,
}


def first_failure(entry: CatalogueEntry, way: InProcess | ByJudge | ByCommand) -> FirstFailure:
    """One mistake, checked in one of the ways."""
    started, processor = time.perf_counter(), way.processor()
    record = way.record(entry)
    seconds, processor = time.perf_counter() - started, way.processor() - processor
    (candidate,) = json.loads(record)["candidates"]
    cause = next((cause for cause in candidate["causes"] if cause["level"] == "MUST"), None)
    return FirstFailure(
        mistake=entry.name,
        caught=candidate["verdict"] not in GREEN,
        clause=cause["clauses"][0] if cause else "",
        cause=cause["name"] if cause else "",
        seconds=seconds,
        processor=processor - getattr(way, "importing", 0.0),
    )


def parsed() -> argparse.Namespace:
    """The options of the command line; ends with one sentence where they cannot be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--order", action="store_true", help="print the order of the clauses")
    parser.add_argument("--by", choices=tuple(WAYS), default="check", help="how they are checked")
    parser.add_argument("--unexplained", action="store_true", help="verdicts without names")
    parser.add_argument("--sample", type=int, default=150, help="mistakes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--matrix", type=Path, default=Path("first_failure.json"))
    options = parser.parse_args()
    if options.sample < 1:
        parser.error(f"--sample is {options.sample}: give at least 1")
    if options.unexplained and options.by == "command":
        parser.error("--unexplained is for --by check and --by judge: the command names failures")
    return options


def main() -> None:
    """Print an order, or the times."""
    options = parsed()
    names = sampled(options.sample, options.seed)
    if options.order:
        for slug in soonest(matrix(names, options.jobs, 30.0, options.matrix)):
            print(f'    "{slug}",')
        return
    every = entries(TeethOptions(targets=(), mistakes=tuple(names)), lambda _what, _name: None)
    # What hangs or ends its process is for the command: nothing stops it here.
    ending = [entry for entry in every if entry.primary in ENDS]
    # What breaks no MUST is passed: exitfirst looks for those alone.
    others = [entry for entry in every if entry.primary not in ENDS]
    harmless = [entry for entry in others if not breaks_must(entry)]
    asked = [entry for entry in others if breaks_must(entry)]
    if options.by == "command":  # what is acted out stands in no file
        asked = [entry for entry in asked if entry.origin == REPOSITORY]
    rows = []
    with WAYS[options.by](explain=not options.unexplained) as way:
        for entry in asked:
            row = first_failure(entry, way)
            rows.append(row)
            said = f"{row.mistake}: {row.clause} {row.cause}"
            print(f"{row.seconds:6.2f} s {row.processor:6.2f} s  {said}", flush=True)
    caught = [row for row in rows if row.caught]
    for left, why in ((ending, "hang or end their process"), (harmless, "break a SHOULD alone")):
        if left:
            print(f"left out, as they {why}: {', '.join(entry.name for entry in left)}")
    if not caught:
        print(f"0 of {len(rows)} caught")
        return
    print(f"{len(caught)} of {len(rows)} caught; ", end="")
    for limit in SECONDS:
        within = sum(row.caught and row.processor <= limit for row in rows)
        print(f"{within / len(rows):.0%} within {limit:g} s of a processor; ", end="")
    print(f"median {median(row.processor for row in caught):.2f} s")


if __name__ == "__main__":
    main()
