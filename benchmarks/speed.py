"""How long one candidate takes, and how much of it is the harness.

``python benchmarks/speed.py [--profile quick] [TARGET ...]`` runs each candidate once and prints
its seconds, those of the processor (all threads; more than the total where threads wait busily),
those spent inside the candidate and inside the golden reference, and the overhead: total /
(candidate + reference). It exits 1 when a candidate exceeds the limit of its profile.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass

from conformance.base.profile import PROFILES
from conformance.declare.candidate import Candidate
from conformance.identification.opening import resolve
from conformance.running.runner import CandidateRun

LIMITS = {"quick": 10.0, "default": 60.0}


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The seconds of one run, and what it tried."""

    total: float
    processor: float
    candidate: float
    reference: float
    clauses: int
    examples: int

    @property
    def overhead(self) -> float:
        """Total over what a run without a harness would cost."""
        return self.total / max(self.candidate + self.reference, sys.float_info.min)


def timed(candidate: Candidate, profile: str, seed: int) -> Timing:
    """Run every clause of one candidate in this process."""
    start, worked = time.perf_counter(), time.process_time()
    run = CandidateRun(candidate, profile=PROFILES[profile], seed=seed)
    results = [run.run(planned) for planned in run.planned()]
    return Timing(
        total=time.perf_counter() - start,
        processor=time.process_time() - worked,
        candidate=sum(subject.candidate_seconds for subject in run.subjects),
        reference=sum(subject.oracle.seconds for subject in run.subjects),
        clauses=sum(result.examples > 0 for result in results),
        examples=sum(result.examples for result in results),
    )


def main() -> int:
    """Measure, print, and return 1 when a limit is exceeded."""
    parser = argparse.ArgumentParser(description="Seconds and overhead of each candidate.")
    parser.add_argument("targets", nargs="*", default=["candidates"], metavar="TARGET")
    parser.add_argument("--profile", choices=sorted(PROFILES), default="quick")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    limit = LIMITS.get(options.profile, float("inf"))
    slowest = 0.0
    print(f"profile {options.profile}, limit {limit} s a candidate")
    columns = f"{'total':>7} {'cpu':>7} {'cand.':>7} {'golden':>7} {'over':>6}"
    print(f"{'candidate':32} {columns}  clauses examples")
    for candidate in resolve(options.targets):
        timing = timed(candidate, options.profile, options.seed)
        slowest = max(slowest, timing.total)
        print(
            f"{candidate.name:32} {timing.total:7.2f} {timing.processor:7.2f} "
            f"{timing.candidate:7.2f} {timing.reference:7.2f} {timing.overhead:6.1f}  "
            f"{timing.clauses:7d} {timing.examples:8d}",
            flush=True,
        )
    print(f"slowest {slowest:.2f} s")
    return 0 if slowest <= limit else 1


if __name__ == "__main__":
    sys.exit(main())
