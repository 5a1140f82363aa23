"""What ``backward()`` costs beside ``torch.autograd.grad``, which it replaced in the clauses.

``python benchmarks/backward.py`` asks both for the gradients of query, key and value of the same
calls, in turns, and prints the smallest CPU time of many rounds and their ratio. It exits 1 when
``backward()`` with what the clauses do around it takes more than a tenth longer altogether.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from conformance.base.geometry import Geometry
from conformance.calls.calling import guarded
from conformance.calls.differentiating import COMPUTING_GRADIENTS, Taped
from conformance.clauses.subject import Subject
from conformance.declare.candidate import Candidate
from conformance.identification.opening import resolve
from conformance.problems.problem import Problem

LIMIT = 1.1
ROUNDS = 200
TARGETS = ("candidates.eager:eager_core", "candidates.eager:eager_layer")
LENGTHS = (5, 33, 129)


def by_name(taped: Taped, gradient: Tensor) -> None:
    """As it was asked before."""
    given = (taped.returned, taped.all_leaves, gradient)
    taped.gather(guarded(torch.autograd.grad, given, {"allow_unused": True}, COMPUTING_GRADIENTS))


def by_leaves(taped: Taped, gradient: Tensor) -> None:
    """As the clauses ask."""
    taped.pull_as_returned(gradient)


def seconds(subject: Subject, problem: Problem, ask: Callable[[Taped, Tensor], None]) -> float:
    """CPU seconds of one backward pass; the call before it is not counted."""
    taped = subject.gradients.tape(subject.inputs(problem))
    gradient = torch.ones_like(taped.returned)
    start = time.process_time()
    ask(taped, gradient)
    return time.process_time() - start


def compared(candidate: Candidate, length: int) -> tuple[float, float]:
    """The smallest times of both, asked in turns."""
    sizes = Geometry(
        **dict.fromkeys(("batch", "num_heads", "num_kv_heads"), 2),
        query_length=length,
        key_length=length,
        head_size=16,
        value_head_size=16,
        query_size=32,
        key_size=32,
        value_size=32,
        output_size=32,
    )
    subject = Subject(candidate, "float32")
    problem = Problem(geometry=sizes, dtype="float32", seed=0)
    rounds = [
        (seconds(subject, problem, by_name), seconds(subject, problem, by_leaves))
        for _ in range(ROUNDS)
    ]
    before, after = zip(*rounds, strict=True)
    return min(before), min(after)


def main() -> int:
    """Print the table; 1 when it costs something."""
    total = [0.0, 0.0]
    print(f"{'candidate':>24} {'length':>6} {'grad':>9} {'backward':>9} {'ratio':>6}")
    for target in TARGETS:
        for candidate in resolve([target]):
            for length in LENGTHS:
                before, after = compared(candidate, length)
                total = [total[0] + before, total[1] + after]
                shown = f"{1e6 * before:7.0f}us {1e6 * after:7.0f}us {after / before:6.2f}"
                print(f"{candidate.name:>24} {length:>6} {shown}")
    print(f"altogether {total[1] / total[0]:.3f} of the time (at most {LIMIT})")
    return int(total[1] > LIMIT * total[0])


if __name__ == "__main__":
    sys.exit(main())
