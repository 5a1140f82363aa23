"""Makes a failing problem smaller in sizes and options while the same failure remains.

Hypothesis shrinks neither explicit examples nor, without slipping to another bug, failures from a
pool shared by many clauses. A problem is a handful of integers and names, so two searches end at
tiny sizes in a few dozen calls: a ladder of the smallest useful sizes, from below, and a greedy
descent from the failing problem.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile
from typing import Any, Final

from ...base.geometry import FIELDS, Geometry
from ...declare.candidate import Candidate
from ...problems.caching import cached_length
from ...problems.fitting import fitted_geometry, shared_inputs
from ...problems.problem import Problem
from ...problems.space import WIDTHS, Space

StillFails = Callable[[Problem], bool]
# The changed fields of a simpler problem.
Change = frozenset[tuple[str, Any]]
SIMPLER_SIZES = (1, 2, 3, 4, 6, 8)
SEEDS = 4
# Few enough elements for a reader to take in: further seeds are not worth it.
SMALL_ENOUGH = 8
# Counterexamples of other clauses to try.
MOST_REDUCED_PROBLEMS = 6
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
# Axes that mistakes need longer than one together; the rest stays at one.
RUNGS: tuple[tuple[str, ...], ...] = (
    (),
    *((name,) for name in ORDER),
    ("query_length", "key_length"),
    ("key_length", "head_size"),
    ("key_length", "value_head_size"),
    ("num_heads", "num_kv_heads"),
    ("num_heads", "key_length"),
    ("num_heads", "num_kv_heads", "key_length"),
    ("batch", "key_length"),
    ("batch", "num_heads", "num_kv_heads"),
    WIDTHS,
    ("key_length", *WIDTHS),
    ("query_length", "key_length", *WIDTHS),
    ("query_length", "key_length", "head_size", "value_head_size"),
    tuple(FIELDS),
)
TOGETHER = (
    ("num_heads", "num_kv_heads"),
    ("query_length", "key_length"),
    ("head_size", "value_head_size"),
    WIDTHS,
)


def reduce_problem(
    problem: Problem,
    candidate: Candidate,
    space: Space,
    still_fails: StillFails,
    *,
    tries: int,
    reduced_problems: Iterable[Problem] = (),
) -> tuple[Problem, int]:
    """Return the smallest failing problem found within ``tries``, and the number of tries made.

    ``reduced_problems`` are the reduced problems of other clauses: a problem showing one failure
    mostly shows the next. ``Space.preferred`` sizes, preferred for their power, do not bind
    reduction.
    """
    search = _ProblemSearch(
        candidate, dataclasses.replace(space, preferred=()), still_fails, tries, problem
    )
    search.take_first(_alike(problem, reduced_problems))
    search.take_first(_ladder(search.best, candidate, seeds=()))
    search.descend()
    if elements(search.best.geometry, candidate.kind) > SMALL_ENOUGH and search.take_first(
        _ladder(search.best, candidate, seeds=range(SEEDS))
    ):
        search.descend()
    return search.best, search.used


class _ProblemSearch:
    def __init__(
        self,
        candidate: Candidate,
        space: Space,
        still_fails: StillFails,
        tries: int,
        problem: Problem,
    ) -> None:
        self.candidate = candidate
        self.space = space
        self.best = problem
        self.used = 0
        self._still_fails = still_fails
        self._tries = tries
        self._tried = {problem}

    def take_first(self, proposals: Iterable[Problem]) -> bool:
        """Continue with the first failing proposal that is no larger; False if none fails."""
        for proposal in proposals:
            smaller = self._settled(proposal)
            if smaller is None:
                continue
            if self.used >= self._tries:
                return False
            self.used += 1
            self._tried.add(smaller)
            if self._still_fails(smaller):
                self.best = smaller
                return True
        return False

    def descend(self) -> None:
        """Continue with simpler problems until none of them fails.

        A change after which a problem passed is retried on smaller problems last: mostly they pass,
        too.
        """
        before = None
        while self.best != before:
            before, hopeless = self.best, set[Change]()
            while self.take_first(self._changed(hopeless)):
                pass

    def _changed(self, hopeless: set[Change]) -> Iterator[Problem]:
        """Yield the simpler problems except hopeless changes; useless changes become hopeless."""
        best = self.best
        for simpler in _simpler(best, self.space, self.candidate):
            change = _change(best, simpler)
            if change not in hopeless:
                yield simpler
                hopeless.add(change)

    def _settled(self, proposal: Problem) -> Problem | None:
        """Fit a proposal to the candidate; None if tried before, not admitted or larger."""
        geometry = fitted_geometry(proposal.geometry, self.candidate, self.space)
        settled = proposal.replace(geometry=geometry)
        settled = settled.replace(past=cached_length(settled, self.candidate))
        settled = settled.replace(shared=shared_inputs(settled, self.candidate))
        kind = self.candidate.kind
        if settled in self._tried or not self.space.admits(settled, self.candidate):
            return None
        return None if volume(geometry, kind) > volume(self.best.geometry, kind) else settled


def elements(geometry: Geometry, kind: str) -> int:
    """How many elements query, key and value have together."""
    sizes = geometry
    if kind == "core":
        queries = sizes.num_heads * sizes.query_length * sizes.head_size
        keys = sizes.num_kv_heads * sizes.key_length * (sizes.head_size + sizes.value_head_size)
    else:
        queries = sizes.query_length * sizes.query_size
        keys = sizes.key_length * (sizes.key_size + sizes.value_size)
    return sizes.batch * (queries + keys)


def volume(geometry: Geometry, kind: str) -> tuple[int, int]:
    """Return a reader's effort: elements of the inputs, then all sizes, weights and output."""
    return elements(geometry, kind), sum(getattr(geometry, name) for name in FIELDS)


def _alike(problem: Problem, reduced_problems: Iterable[Problem]) -> Iterator[Problem]:
    """Yield this problem with the sizes and values of other clauses' counterexamples."""
    smallest = sorted(reduced_problems, key=lambda other: sum(vars(other.geometry).values()))
    for other in smallest[:MOST_REDUCED_PROBLEMS]:
        yield problem.replace(geometry=other.geometry, values=other.values, seed=other.seed)


def _ladder(problem: Problem, candidate: Candidate, *, seeds: Iterable[int]) -> Iterator[Problem]:
    """Yield tiny sizes in rising order, below the problem's own; with every seed, if given."""
    kind = candidate.kind
    rungs = [Geometry(**{name: 1 + (name in rung) for name in FIELDS}) for rung in RUNGS]
    rungs.append(Geometry(**{**dict.fromkeys(FIELDS, 1), "query_length": 2, "key_length": 3}))
    rungs.append(Geometry(**{**dict.fromkeys(FIELDS, 1), "key_length": 3}))
    rungs.sort(key=lambda rung: volume(rung, kind))
    limit = volume(problem.geometry, kind)
    for rung in takewhile(lambda rung: volume(rung, kind) < limit, rungs):
        for seed in tuple(seeds) or (problem.seed,):
            yield problem.replace(geometry=rung, seed=seed)


def _simpler(problem: Problem, space: Space, candidate: Candidate) -> Iterator[Problem]:
    """Yield problems with a smaller size or an option less, the boldest first."""
    geometry = problem.geometry
    for name in ORDER:
        sizes = _smaller_sizes(getattr(geometry, name))
        for size in sizes:
            yield problem.replace(geometry=geometry.replace(**{name: size}))
        for names in TOGETHER:
            if names[0] != name:
                continue
            for size in sizes:
                least = {other: min(size, getattr(geometry, other)) for other in names}
                yield problem.replace(geometry=geometry.replace(**least))
    yield from _plainer(problem, space)
    yield from _plainer_mask(problem, space, candidate)


# The defaults of the options of a call and of the layout of its tensors.
_DEFAULTS: Final[dict[str, Any]] = {
    "sinks": False,
    "layout": "contiguous",
    "mask_layout": "contiguous",
    "shared": "",
    "return_weights": False,
    "dropout": None,
}


def _smaller_sizes(have: int) -> list[int]:
    """Return a few tiny sizes, then half the size, then ever smaller reductions."""
    sizes = [size for size in SIMPLER_SIZES if size < have]
    step = have // 2
    while step:
        sizes.append(have - step)
        step //= 2
    return list(dict.fromkeys(size for size in sizes if 0 < size < have))


def _plainer(problem: Problem, space: Space) -> Iterator[Problem]:
    """Yield problems with fewer options: no bias, mask or causality, plain values, a small seed.

    Options a space always offers may be the subject of the clause and stay.
    """
    options = dict.fromkeys(("scale", "softcap", "window", "mask"))
    for name, none in (*options.items(), *_DEFAULTS.items()):
        kept = name == "mask" and space.mask != "maybe"
        if getattr(problem, name) != none and not kept:
            yield problem.replace(**{name: none})
    if problem.causal and space.causal == "maybe":
        yield problem.replace(causal=False)
    for past in (0, 1):
        if problem.past > past:
            yield problem.replace(past=past)
    if problem.biases:
        yield problem.replace(biases=False)
    if problem.values != "integers":
        yield problem.replace(values="integers")
    for seed in range(SEEDS):
        if problem.seed > seed:
            yield problem.replace(seed=seed)


def _plainer_mask(problem: Problem, space: Space, candidate: Candidate) -> Iterator[Problem]:
    """Yield masks without numbers, with fewer varying axes, or of a plainer pattern."""
    plan = problem.mask
    if plan is None:
        return
    if plan.finite_bias:
        yield problem.replace(mask=plan.replace(finite_bias=False))
    options = [shape for form, shape in space.options(candidate) if form == plan.form]
    for shape in sorted(options, key=_varying):
        if _varying(shape) < _varying(plan.shape):
            yield problem.replace(mask=plan.replace(shape=shape))
    for pattern in takewhile(lambda pattern: pattern != plan.pattern, ("full", "padding")):
        if pattern in space.patterns:
            yield problem.replace(mask=plan.replace(pattern=pattern))


def _change(problem: Problem, simpler: Problem) -> Change:
    """Return the fields that differ in a simpler problem, sizes included."""
    own, other = ({**vars(one), **vars(one.geometry)} for one in (problem, simpler))
    return frozenset(item for item in other.items() if item[1] != own[item[0]])


def _varying(shape: str) -> int:
    return sum(letter != "1" for letter in shape)
