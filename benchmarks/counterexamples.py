"""How small counterexamples are: elements of query, key and value over the catalogue of mistakes.

Each mistake runs the clause that names it best under the quick profile. Prints a row a clause, the
quartiles over all mistakes and the largest, and exits with 1 when the median is above the limit.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

sys.path.append(str(Path(__file__).resolve().parent.parent))

import torch

from candidates.broken import MISTAKES, Mistake
from conformance.base.profile import PROFILES
from conformance.base.results import ClauseResult
from conformance.running.runner import CandidateRun
from conformance.tools.teeth.jobs import candidate_of

# Issue "Teeth", what it shows: for mistakes that small inputs can show.
LIMIT: Final = 12
QUICK_STEP: Final = 5
LARGEST_SHOWN: Final = 10


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One counterexample: its mistake and clause, its elements, and the seconds it took."""

    mistake: str
    clause: str
    elements: int
    plain: bool
    seconds: float


def measure(mistake: Mistake) -> Measured | None:
    """The counterexample of a mistake; None when its clause does not fail."""
    start = time.perf_counter()
    candidate = candidate_of(mistake, "candidates.broken")
    run = CandidateRun(candidate, profile=PROFILES["quick"], only=(mistake.primary,))
    results = [run.run(planned) for planned in run.planned()]
    failed = [result for result in results if result.status == "failed"]
    if not failed:
        return None
    smallest = min(map(input_elements, failed))
    return Measured(
        mistake=mistake.name,
        clause=mistake.primary,
        elements=smallest,
        plain=all(map(of_integers, failed)),
        seconds=time.perf_counter() - start,
    )


def input_elements(result: ClauseResult) -> int:
    """Elements of query, key and value together."""
    inputs = _inputs(result)
    return sum(math.prod(inputs[name]["shape"]) for name in ("query", "key", "value"))


def of_integers(result: ClauseResult) -> bool:
    """Whether query, key and value are written out and hold nothing but integers."""
    tables = [_inputs(result)[name] for name in ("query", "key", "value")]
    return all("values" in table and _whole(table["values"]) for table in tables)


def _whole(values: Any) -> bool:
    if isinstance(values, list):
        return all(map(_whole, values))
    return math.isfinite(values) and values == round(values)


def _inputs(result: ClauseResult) -> dict[str, Any]:
    if result.counterexample is None:
        msg = f"{result.id} failed without a counterexample"
        raise ValueError(msg)
    inputs: dict[str, Any] = result.counterexample["inputs"]
    return inputs


def quartiles(sizes: Sequence[int]) -> tuple[float, float, float]:
    """The lower quartile, the median and the upper quartile."""
    if len(sizes) == 1:
        return (sizes[0],) * 3
    lower, middle, upper = statistics.quantiles(sizes, n=4, method="inclusive")
    return lower, middle, upper


def show(found: Sequence[Measured]) -> None:
    """Print a row a clause, then all of them."""
    by_clause = defaultdict(list)
    for one in found:
        by_clause[one.clause].append(one.elements)
    print(f"{'clause':34} mistakes  lower  median  upper  largest")
    for clause, sizes in [*sorted(by_clause.items()), ("all", [one.elements for one in found])]:
        lower, middle, upper = quartiles(sizes)
        print(f"{clause:34} {len(sizes):8} {lower:6g} {middle:7g} {upper:6g} {max(sizes):8}")
    small = sum(one.elements <= LIMIT for one in found)
    plain = sum(one.plain for one in found)
    print(f"\nat most {LIMIT} elements: {small} of {len(found)}; nothing but integers: {plain}")
    print(f"seconds a mistake: {statistics.mean(one.seconds for one in found):.2f}")
    largest = sorted(found, key=lambda one: -one.elements)[:LARGEST_SHOWN]
    told = ", ".join(f"{one.mistake} {one.elements} ({one.clause})" for one in largest)
    print(f"largest: {told}")


def chosen(names: Iterable[str], *, quick: bool) -> list[Mistake]:
    """The mistakes of attentions to measure: those named, else all, or every fifth.

    Those of whole models are left out: their inputs are no query, key and value.
    """
    measurable = [one for one in MISTAKES if not one.primary.startswith("model.")]
    wanted = set(names)
    unknown = wanted - {mistake.name for mistake in measurable}
    if unknown:
        sys.exit(f"no such mistake of an attention: {', '.join(sorted(unknown))}")
    if wanted:
        return [mistake for mistake in measurable if mistake.name in wanted]
    return measurable[:: QUICK_STEP if quick else 1]


def main() -> int:
    """Measure and print; 1 when the median is above the limit or a mistake is not caught."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mistakes", nargs="*", help="only these mistakes of the catalogue")
    parser.add_argument("--quick", action="store_true", help="every fifth mistake")
    given = parser.parse_args()
    torch.set_num_threads(1)
    picked = chosen(given.mistakes, quick=given.quick)
    measured = {mistake.name: measure(mistake) for mistake in picked}
    found = [one for one in measured.values() if one is not None]
    missed = [name for name, one in measured.items() if one is None]
    if found:
        show(found)
    if missed:
        print(f"not caught by the clause that names it best: {', '.join(missed)}")
    return int(bool(missed) or quartiles([one.elements for one in found])[1] > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
