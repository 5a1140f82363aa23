"""What it takes to judge sequences whose table of weights does not fit the memory.

``python benchmarks/long_sequences.py [--length 32768] [--rows 0] [TARGET ...]`` asks each core (a
candidate as ``conformance check`` takes it; without any, torch's kernel and blocks written out)
once, and holds its whole answer against the golden one, evaluated in blocks of rows. Printed are
the largest error over its bound, the seconds of candidate and judge, on the clock and of all
processors, and the largest memory of the process. It exits 1 when an answer is wrong or a limit is
exceeded: 4 GiB, and five minutes on the clock for each candidate's judge.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import conformance
from conformance.base.geometry import Geometry
from conformance.calls.calling import arguments, build_forward, guarded, read_answer
from conformance.declare.candidate import Candidate
from conformance.identification.opening import resolve
from conformance.oracle.comparison import Comparison
from conformance.oracle.long_sequences import LongGolden
from conformance.problems.materialise import materialise
from conformance.problems.problem import Problem

LENGTH = 32768
HEAD_SIZE = 64
MOST_SECONDS = 300.0
MOST_MEMORY = 4.0
ROWS_OF_A_BLOCK = 512


@conformance.core(name="torch_kernel", causal="top-left", features=[])
def torch_kernel(query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False) -> Tensor:
    """The kernel that torch picks for the CPU: online softmax in blocks."""
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(query, key, value, is_causal=causal)


@conformance.core(name="eager_in_blocks", causal="top-left", features=[])
def eager_in_blocks(query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False) -> Tensor:
    """Scores, softmax and sum written out, some queries at a time."""
    scale, places = query.shape[-1] ** -0.5, torch.arange(key.shape[2])
    blocks = []
    for first in range(0, query.shape[2], ROWS_OF_A_BLOCK):
        scores = query[:, :, first : first + ROWS_OF_A_BLOCK] @ key.mT * scale
        if causal:
            rows = torch.arange(first, first + scores.shape[2])
            scores = scores.masked_fill(places > rows[:, None], -torch.inf)
        blocks.append(scores.softmax(dim=-1) @ value)
    return torch.cat(blocks, dim=2)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One candidate's answer, held against the golden one; processor seconds are of all threads."""

    found: Comparison
    candidate_seconds: float
    seconds: float
    processor_seconds: float


def problem(length: int, *, heads: int, head_size: int, causal: bool, seed: int) -> Problem:
    """As many queries as keys, all independent random numbers."""
    width = heads * head_size
    geometry = Geometry(
        batch=1,
        num_heads=heads,
        num_kv_heads=heads,
        query_length=length,
        key_length=length,
        head_size=head_size,
        value_head_size=head_size,
        query_size=width,
        key_size=width,
        value_size=width,
        output_size=width,
    )
    return Problem(geometry=geometry, dtype="float32", seed=seed, causal=causal)


def judged(candidate: Candidate, asked: Problem, rows: int) -> Judged:
    """Ask once, and judge ``rows`` rows spread over the answer; all of them for zero."""
    inputs = materialise(asked, candidate)
    start = time.perf_counter()
    answered = guarded(build_forward(candidate, inputs), *arguments(inputs))
    answer = read_answer(answered, inputs).output
    candidate_seconds = time.perf_counter() - start
    length = inputs.geometry.query_length
    chosen = torch.linspace(0, length - 1, rows).long().unique() if rows else None
    start, worked = time.perf_counter(), time.process_time()
    found = LongGolden(inputs, candidate.declaration, asked.dtype).compare(answer, rows=chosen)
    return Judged(
        found=found,
        candidate_seconds=candidate_seconds,
        seconds=time.perf_counter() - start,
        processor_seconds=time.process_time() - worked,
    )


def peak() -> float:
    """The largest memory that this process has held so far, in GiB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def candidates_of(targets: list[str]) -> list[Candidate]:
    """The candidates of the targets; the two above where there is none."""
    if not targets:
        return [torch_kernel, eager_in_blocks]
    return resolve(targets)


def main(given: list[str] | None = None, *, show: Callable[..., Any] = print) -> int:
    """Judge, print, and return 1 when something is wrong or takes too much."""
    parser = argparse.ArgumentParser(description="Seconds and memory of judging long sequences.")
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--length", type=int, default=LENGTH, help="queries, and keys")
    parser.add_argument("--heads", type=int, default=1)
    parser.add_argument("--head-size", type=int, default=HEAD_SIZE)
    parser.add_argument("--rows", type=int, default=0, help="how many rows to judge; 0 for all")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(given)
    asked = problem(
        options.length,
        heads=options.heads,
        head_size=options.head_size,
        causal=options.causal,
        seed=options.seed,
    )
    load = ", ".join(f"{part:.2f}" for part in os.getloadavg())
    show(
        f"{options.length} x {options.length}, {options.heads} heads of {options.head_size}; "
        f"{torch.get_num_threads()} threads, load before {load}"
    )
    failed = False
    for candidate in candidates_of(options.targets):
        done = judged(candidate, asked, options.rows)
        memory = peak()
        failed |= bool(done.found.kind) or done.seconds > MOST_SECONDS or memory > MOST_MEMORY
        show(
            f"{candidate.name:20} margin {done.found.margin:.4f}  "
            f"candidate {done.candidate_seconds:.1f} s  judge {done.seconds:.1f} s "
            f"({done.processor_seconds:.1f} s of processors)  peak {memory:.2f} GiB"
        )
        if done.found.violation is not None:
            show(f"  {done.found.violation.message}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
