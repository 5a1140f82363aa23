"""Makes a failing problem smaller: a greedy search that keeps the clause and the kind of failure.

Hypothesis shrinks neither explicit examples nor, without slipping to another bug, failures of a
pool that many clauses share; a problem is a handful of integers and names, so a short list of
simpler values for each field, tried in turn, ends at tiny sizes in a few dozen calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .candidate import Candidate
from .geometry import FIELDS, Geometry
from .problem import Problem
from .settling import settle
from .space import Space

StillFails = Callable[[Problem], bool]
SIMPLER_SIZES = (1, 2, 3, 4, 6, 8)
# Lengths and heads first: they make the largest difference to a reader.
ORDER = (
    "batch",
    "key_length",
    "query_length",
    "num_heads",
    "num_kv_heads",
    "head_size",
    "value_head_size",
    "query_size",
    "key_size",
    "value_size",
    "output_size",
)
assert set(ORDER) == set(FIELDS)  # noqa: S101 (a field added to Geometry must be reduced too)


def reduce_problem(
    problem: Problem, candidate: Candidate, space: Space, still_fails: StillFails, *, tries: int
) -> tuple[Problem, int]:
    """The smallest failing problem found within some tries, and how many were made."""
    used = 0
    improved = True
    while improved:
        improved = False
        for simpler in _simpler(problem, candidate, space):
            if used >= tries:
                return problem, used
            used += 1
            if still_fails(simpler):
                problem, improved = simpler, True
                break
    return problem, used


def _simpler(problem: Problem, candidate: Candidate, space: Space) -> Iterator[Problem]:
    """Simpler problems of the same space, the boldest first."""
    seen = {problem}
    for proposal in _proposals(problem):
        geometry = settle(proposal.geometry, candidate, space)
        settled = proposal.replace(geometry=geometry)
        grew = _volume(geometry) > _volume(problem.geometry)
        if settled in seen or grew or not space.admits(settled, candidate):
            continue
        seen.add(settled)
        yield settled


def _volume(geometry: Geometry) -> tuple[int, int]:
    """Elements of query, key and value, and the widths: what a reader must look at."""
    heads = geometry.num_heads * geometry.query_length * geometry.head_size
    key_value = geometry.key_length * (geometry.head_size + geometry.value_head_size)
    total = geometry.batch * (heads + geometry.num_kv_heads * key_value)
    return total, sum(getattr(geometry, name) for name in FIELDS)


def _proposals(problem: Problem) -> Iterator[Problem]:
    geometry = problem.geometry
    yield problem.replace(geometry=Geometry(**dict.fromkeys(FIELDS, 1)))
    yield problem.replace(geometry=Geometry(**dict.fromkeys(FIELDS, 2)))
    for name in ORDER:
        have = getattr(geometry, name)
        sizes = [size for size in SIMPLER_SIZES if size < have]
        if have > 2 * SIMPLER_SIZES[-1]:
            sizes.append(have // 2)
        for size in sizes:
            yield problem.replace(geometry=geometry.replace(**{name: size}))
        if sizes and name in ("num_heads", "key_length"):
            together = {"num_heads": "num_kv_heads", "key_length": "query_length"}[name]
            for size in sizes:
                both = geometry.replace(**{name: size, together: size})
                yield problem.replace(geometry=both)
    yield from _plainer(problem)


def _plainer(problem: Problem) -> Iterator[Problem]:
    """Fewer options: no bias, no mask, no causality, plain values, a small seed."""
    for name in ("scale", "softcap", "window", "mask"):
        if getattr(problem, name) is not None:
            yield problem.replace(**{name: None})
    if problem.causal:
        yield problem.replace(causal=False)
    if problem.biases:
        yield problem.replace(biases=False)
    if problem.values != "integers":
        yield problem.replace(values="integers")
    for seed in range(4):
        if problem.seed > seed:
            yield problem.replace(seed=seed)
