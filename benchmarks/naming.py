"""What wrong attentions that nobody wrote for the catalogue are called, and how long that takes.

``python benchmarks/naming.py`` breaks correct kernels by changing their text (``naming_corpus``),
runs each in the profile quick until MUST clauses fail, and prints the diagnosis of the first that
is named beside what the change does. ``--json FILE`` keeps all of it. Names that somebody has read
and compared with the text are in ``naming_corpus/judged.json``: right, or wrong; others are
counted as not judged. ``--lines`` says as well which line each diagnosis blames: the changed one,
one that uses what that makes, one before which something is missing, none, or another.
``--every N`` takes one mutant of N, ``--start N`` passes over the first N. ``--pairs N`` acts out
random pairs of mistakes of the catalogue instead, and compares what the diagnosis says with the
pair itself; ``--catalogue N`` does so with random entries of it, each alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from fnmatch import fnmatchcase
from itertools import repeat
from pathlib import Path
from typing import Any, Final

import torch
from naming_catalogue import diagnosed_entry, drawn
from naming_corpus import MUTANTS, Mutant, load
from naming_corpus.changed_lines import blame
from naming_pairs import diagnosed_pair

from conformance.base.limits import unsearched
from conformance.base.mistake import UNKNOWN
from conformance.base.profile import PROFILES
from conformance.running.clause_run import ClauseRun
from conformance.running.runner import CandidateRun

JUDGED: Final = Path(__file__).parent / "naming_corpus" / "judged.json"
# Failures whose diagnosis is looked at; those that have none, such as an exception, do not count.
LOOKED_AT: Final = 3
# How long a diagnosis should take.
TARGET_SECONDS: Final = 1.0


@unsearched()  # as candidates are judged
def diagnosed(mutant: Mutant) -> dict[str, Any]:
    """The diagnosis of a mutant with its seconds; empty where no failing clause is diagnosed."""
    torch.set_num_threads(1)
    run = CandidateRun(load(mutant), profile=PROFILES["quick"], dtypes=("float32",))
    entries: list[dict[str, Any]] = []
    seconds, failed, looked_at = 0.0, 0, 0
    for planned in run.planned():
        if planned.reason or planned.level != "MUST":
            continue
        result = run.run(planned, clause_run=ClauseRun(deferred=True))
        if result.status != "failed":
            continue
        failed += 1
        if result.violation is not None and result.violation.kind == "raised":
            continue  # that a size is refused is no name of a mistake
        start = time.process_time()
        diagnosis = list(run.explain_failure(planned, result).diagnosis)
        seconds = max(seconds, time.process_time() - start)
        entries, looked_at = diagnosis or entries, looked_at + bool(diagnosis)
        named = entries and entries[0]["name"] != UNKNOWN
        if named or looked_at == LOOKED_AT:
            break
    return {
        "mutant": mutant.name,
        "truth": mutant.truth,
        "names": [entry["name"] for entry in entries],
        "line": entries[0].get("line") if entries else None,
        "texts": [entry["text"] for entry in entries],
        "failed": failed,
        "seconds": round(seconds, 2),
    }


def outcome(entry: dict[str, Any], judged: dict[str, dict[str, str]]) -> str:
    """Right, wrong, not judged, unknown, or not caught."""
    if not entry["failed"]:
        return "not caught"
    names = [name for name in entry["names"] if name != UNKNOWN]
    if not names:
        return "unknown"
    said = judged.get(entry["mutant"], {})
    return said.get(" | ".join(names), "not judged")


def main() -> None:
    """Run mutants, pairs or the catalogue, print a line for each, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", action="append", help="names of mutants, with * and ?; several times for several"
    )
    parser.add_argument(
        "--pairs", type=int, default=0, help="how many pairs of mistakes to act out"
    )
    parser.add_argument(
        "--catalogue", type=int, default=0, help="how many mistakes of the catalogue to act out"
    )
    parser.add_argument("--lines", action="store_true", help="say which lines are blamed")
    parser.add_argument("--every", type=int, default=1, help="one mutant of so many")
    parser.add_argument("--start", type=int, default=0, help="how many mutants to pass over first")
    parser.add_argument("--seed", type=int, default=0, help="which pairs or mistakes")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--json", type=Path, help="where to keep all diagnoses")
    given = parser.parse_args()
    if given.json and (given.json.is_dir() or not given.json.parent.is_dir()):
        parser.error(f"--json {given.json} cannot be written: name a file in a folder that exists")
    with ProcessPoolExecutor(given.jobs) as pool:
        if given.pairs:
            pairs = pool.map(diagnosed_pair, range(given.pairs), repeat(given.seed))
            entries = _acted(pairs, "pairs")
        elif given.catalogue:
            numbers = drawn(given.catalogue, given.seed)
            entries = _acted(pool.map(diagnosed_entry, numbers), "mistakes of the catalogue")
        else:
            wanted = given.only or ["*"]
            chosen = [m for m in MUTANTS if any(fnmatchcase(m.name, each) for each in wanted)]
            chosen = chosen[given.start :: given.every]
            if not chosen:
                parser.error(f"no mutant is named {' or '.join(wanted)}")
            entries = _mutants(pool, chosen, lines=given.lines)
    if given.json:
        given.json.write_text(json.dumps(entries, indent=1), encoding="utf-8")


def _mutants(pool: Executor, chosen: Sequence[Mutant], *, lines: bool) -> list[dict[str, Any]]:
    judged = json.loads(JUDGED.read_text(encoding="utf-8")) if JUDGED.exists() else {}
    entries, blamed = [], Counter[str]()
    for mutant, entry in zip(chosen, pool.map(diagnosed, chosen), strict=True):
        entries.append(entry)
        print(f"{entry['mutant']}: {outcome(entry, judged)}")
        _print_said(entry)
        if lines:
            entry["blame"] = blame(mutant, entry["line"])
            blamed[entry["blame"]] += 1
            print(f"    line: {entry['blame']}: {entry['line']}", flush=True)
    if lines:
        print(f"\nlines: {dict(blamed)}")
    counts = Counter(outcome(entry, judged) for entry in entries)
    seconds = sorted(entry["seconds"] for entry in entries)
    share = sum(each <= TARGET_SECONDS for each in seconds) / len(seconds)
    print(
        f"\n{len(entries)} mutants: {dict(counts)}; a diagnosis took "
        f"{statistics.median(seconds):.2f} s of processor time (median), "
        f"{seconds[len(seconds) * 9 // 10]:.2f} s in nine of ten, {seconds[-1]:.2f} s at most; "
        f"{share:.0%} took at most {TARGET_SECONDS:g} s"
    )
    return entries


def _acted(diagnosed: Iterable[dict[str, Any]], what: str) -> list[dict[str, Any]]:
    entries, counts = [], Counter[str]()
    for entry in diagnosed:
        entries.append(entry)
        counts[entry["outcome"]] += 1
        print(f"{entry['made']}: {entry['outcome']}")
        _print_said(entry)
    print(f"\n{len(entries)} {what}: {dict(counts)}")
    return entries


def _print_said(entry: dict[str, Any]) -> None:
    print(f"    does: {entry['truth']}")
    for name, text in zip(entry["names"], entry["texts"], strict=True):
        print(f"    said: {name}: {text}", flush=True)


if __name__ == "__main__":
    main()
