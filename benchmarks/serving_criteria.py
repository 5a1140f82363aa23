"""What the criteria of serving libraries see of the mistakes of serving kernels.

``python benchmarks/serving_criteria.py [--workloads 10] [--markdown FILE]`` asks the broken
candidates with caches, latents and quantised keys on workloads of ordinary sizes with normal
values, and judges their answers against the golden by the rules of others:

- FlashInfer-Bench (its evaluators, seen 2026-04-30): an element is wrong where its absolute error
  is above 1e-2 and its relative error above 1e-2; all elements must be right, of codes in 8 bits
  95 %;
- vLLM's tests of paged attention: ``assert_close(atol=1e-3, rtol=1e-5)``, in float32.

Answers alone are compared: no log-sum-exps, gradients or caches that were written.
``conformance teeth candidates.broken.paged --first`` says what this project sees of them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, cast

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from candidates.broken import MISTAKES
from conformance.calls.calling import CandidateFailure
from conformance.clauses.subject import Subject
from conformance.declare.candidate import Candidate
from conformance.declare.declaration import SEQUENCES
from conformance.problems.problem import Problem
from conformance.problems.space import Space
from conformance.problems.strategies import draw_problems

LONGEST: Final = 64
_SIZES: Final = (("batch", 4), ("key_length", 40), ("num_heads", 4), ("head_size", 16))
ABSOLUTE, RELATIVE = 1e-2, 1e-2
OF_LOW_BITS: Final = 0.95

Rule = Callable[[Tensor, Tensor, Candidate], bool]


def flashinfer_bench(got: Tensor, expected: Tensor, candidate: Candidate) -> bool:
    """Whether enough elements are near in absolute or in relative terms."""
    apart = (got - expected).abs()
    near = (apart <= ABSOLUTE) | (apart <= RELATIVE * expected.abs())
    share = OF_LOW_BITS if candidate.declaration.kv_format else 1.0
    return bool(near.double().mean() >= share)


def vllm(got: Tensor, expected: Tensor, _candidate: Candidate) -> bool:
    """Whether every element is near, as vLLM's tests ask it in float32."""
    return torch.allclose(got, expected, atol=1e-3, rtol=1e-5)


RULES: Final[dict[str, Rule]] = {"FlashInfer-Bench": flashinfer_bench, "vLLM's tests": vllm}


def workloads(candidate: Candidate, count: int) -> list[Problem]:
    """Calls of ordinary sizes with normal values, as recorded workloads have them."""
    has_lengths = candidate.declaration.head_layout.has_lengths
    space = Space(
        mask="always" if has_lengths else "never",
        forms=(SEQUENCES,),
        patterns=("random",),
        causal="maybe",
        values=("normal",),
        least=_SIZES,
    )
    drawn = draw_problems(
        candidate, space, dtype="float32", longest=LONGEST, count=count, seed_value=0
    )
    return [problem.replace(layout="contiguous") for problem in drawn]


def is_served(candidate: object) -> bool:
    """Whether a candidate takes caches, a latent, or quantised keys, in float32."""
    if not isinstance(candidate, Candidate) or "float32" not in candidate.declaration.dtypes:
        return False
    declared = candidate.declaration
    heads = declared.head_layout
    return bool(heads.cache_axes) or heads.value_in_key or declared.kv_format is not None


def seen_by(candidate: Candidate, count: int) -> dict[str, bool] | None:
    """Which rules reject a candidate on any workload; None where it has no workload."""
    subject = Subject(candidate, "float32")
    problems = workloads(candidate, count)
    found = dict.fromkeys(RULES, False)
    for problem in problems:
        inputs = subject.inputs(problem)
        expected = subject.golden(inputs)
        judged = ~torch.zeros_like(expected.output, dtype=torch.bool) & expected.judged
        try:
            got = subject.answer(inputs).double()
        except CandidateFailure:
            return dict.fromkeys(RULES, True)
        for name, agrees in RULES.items():
            found[name] |= not agrees(got[judged], expected.output[judged], candidate)
    return found if problems else None


def table(rows: Iterable[tuple[str, str, dict[str, bool]]]) -> list[str]:
    """The table as lines of Markdown, the sum last."""
    every = list(rows)
    lines = [f"| mistake | primary clause | {' | '.join(RULES)} |", "| --- | --- " * 2 + "|"]
    for name, clause, found in every:
        cells = " | ".join("seen" if found[rule] else "passed" for rule in RULES)
        lines.append(f"| {name} | `{clause}` | {cells} |")
    sums = " | ".join(
        f"{sum(found[rule] for *_, found in every)} of {len(every)}" for rule in RULES
    )
    return [*lines, f"| seen, of {len(every)} | | {sums} |"]


def main(arguments: list[str] | None = None) -> int:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workloads", type=int, default=10, help="calls of each mistake")
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    options = parser.parse_args(arguments)
    rows = []
    for mistake in MISTAKES:
        if is_served(mistake.candidate):
            found = seen_by(cast("Candidate", mistake.candidate), options.workloads)
            rows += [] if found is None else [(mistake.name, mistake.primary, found)]
    lines = table(rows)
    if options.markdown:
        options.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")
    shown = Table(*lines[0].strip("| ").split(" | "))
    for line in lines[2:]:
        shown.add_row(*line.strip("| ").split(" | "))
    Console(width=120).print(shown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
