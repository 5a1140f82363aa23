"""What the bounds cost beside the golden, and what either costs beside a whole run.

``python benchmarks/cost.py [--profile default] [--runs quick] [TARGET ...]`` prints three tables.
First the problems of the profile as the clauses put them to each candidate, then fixed sizes: the
seconds of the golden evaluation, of the worst-case bound and of the statistical bound on the same
tensors, side by side in one process, the smallest of several rounds. Last, where the time of a run
of all clauses under another profile goes: golden, bounds, the exact answers for float64, candidate,
and the rest (drawing, comparing, judging).

``--commands [NAME ...]`` prints what whole commands take instead (``commands.py``): smoke, quick,
full and ``-x`` (first) of a core, identify, a model, a Judge of ten sources; ``--before TREE`` has
the same of another checkout beside it.

It exits 1 when a worst-case bound costs more than four times the golden on the profile's problems,
or when either the golden or the bounds take more than half of a run.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from commands import COMMANDS, print_commands
from torch import Generator, Tensor

import conformance.oracle.double_double
import conformance.oracle.extreme_logits
import conformance.oracle.oracle
import conformance.oracle.yardstick
from conformance._golden import golden
from conformance.base.geometry import Geometry
from conformance.base.profile import PROFILES, Profile
from conformance.clauses.registry import all_clauses
from conformance.declare.candidate import Candidate
from conformance.declare.promises import declare
from conformance.identification.opening import resolve
from conformance.oracle.oracle import evaluate
from conformance.problems.inputs import Inputs
from conformance.problems.materialise import materialise
from conformance.problems.pool import Pool
from conformance.problems.problem import Problem
from conformance.running.runner import CandidateRun
from conformance.tolerance import (
    Contract,
    Statistics,
    contract_for,
    core_bound,
    core_statistics,
    has_statistical_bound,
    layer_bound,
    layer_statistics,
)

BOUND_LIMIT = 4.0
SHARE_LIMIT = 0.5
TARGETS = ("candidates.eager", "candidates.torch_multihead_attention")
LENGTHS = (256, 512, 1024)
ROUNDS = 5
MOST_PROBLEMS = 150
Evaluation = golden.Attention | golden.MultiHeadAttention


@dataclass(kw_only=True)
class Costs:
    """Seconds of the golden and of both bounds; no statistical bound where none is defined."""

    golden: float = 0.0
    worst: float = 0.0
    statistical: float = 0.0
    # The golden and the worst case where the statistical bound exists, too.
    compared_golden: float = 0.0
    problems: int = 0
    ratios: list[float] = field(default_factory=list)

    def add(self, other: Costs) -> None:
        """Count the costs of one more problem."""
        self.golden += other.golden
        self.worst += other.worst
        self.statistical += other.statistical
        self.compared_golden += other.golden if other.statistical else 0.0
        self.problems += 1
        self.ratios.append(other.worst / other.golden)

    def row(self, name: str) -> str:
        """One line of a table."""
        many = max(self.problems, 1)
        ordered = sorted(self.ratios)
        ninth = ordered[len(ordered) * 9 // 10] if ordered else 0.0
        drawn = (
            f"{self.statistical / self.compared_golden:8.2f}" if self.compared_golden else " " * 8
        )
        return (
            f"{name:42} {self.problems:8d} {1e3 * self.golden / many:8.2f} "
            f"{1e3 * self.worst / many:8.2f} {1e3 * self.statistical / many:8.2f} "
            f"{self.worst / self.golden:8.2f} {ninth:8.2f} {drawn}"
        )


HEADING = (
    f"{'':42} {'problems':>8} {'golden':>8} {'worst':>8} {'stat.':>8} "
    f"{'w/g':>8} {'w/g 90%':>8} {'s/g':>8}"
)


@dataclass(frozen=True, kw_only=True)
class Task:
    """One problem to be timed: how to evaluate it, and the two bounds of the evaluation."""

    evaluate: Callable[[], Evaluation]
    worst: Callable[[Evaluation], object]
    statistical: Callable[[Evaluation], object] | None

    def costs(self) -> Costs:
        """The smallest time of each over several rounds, taken in turn."""
        found = Costs(golden=float("inf"), worst=float("inf"), statistical=float("inf"))
        with torch.no_grad():
            for _ in range(ROUNDS):
                seconds, evaluation = timed(self.evaluate)
                found.golden = min(found.golden, seconds)
                seconds, _ = timed(partial(self.worst, evaluation))
                found.worst = min(found.worst, seconds)
                if self.statistical is not None:
                    seconds, _ = timed(partial(self.statistical, evaluation))
                    found.statistical = min(found.statistical, seconds)
        if self.statistical is None:
            found.statistical = 0.0
        return found


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds and result of a call."""
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def default_problems(
    candidate: Candidate, profile: Profile, seed: int
) -> list[tuple[Problem, str]]:
    """Problems of every space that a clause with a golden answer puts to a candidate, thinned."""
    pool = Pool(candidate, profile, seed)
    clauses = [c for c in all_clauses() if c.needs_golden and not c.not_applicable(candidate)]
    found = dict.fromkeys(
        (problem, dtype)
        for dtype in candidate.declaration.dtypes
        for space in dict.fromkeys(clause.space for clause in clauses)
        for problem in pool.problems(space, dtype)
    )
    return list(found)[:: max(1, len(found) // MOST_PROBLEMS)]


def task_for(inputs: Inputs, candidate: Candidate, dtype: str) -> Task:
    """What the harness evaluates on some inputs."""
    point = candidate.declaration.semantics

    def contract(core: golden.Attention) -> Contract:
        return contract_for(candidate.declaration, dtype, core.scale)

    def worst(known: Evaluation) -> Tensor:
        if isinstance(known, golden.Attention):
            return core_bound(known, contract(known))
        return layer_bound(known, contract(known.core))

    def statistics(known: Evaluation) -> Statistics:
        if isinstance(known, golden.Attention):
            return core_statistics(known, contract(known))
        return layer_statistics(known, contract(known.core))

    return Task(
        evaluate=lambda: evaluate(inputs, point),
        worst=worst,
        statistical=statistics if inputs.generic and has_statistical_bound(point) else None,
    )


def fixed_inputs(length: int, *, layer: bool) -> Inputs:
    """Independent normal float32 inputs: four heads of 64 channels."""
    geometry = Geometry(
        batch=1,
        num_heads=4,
        num_kv_heads=4,
        query_length=length,
        key_length=length,
        head_size=64,
        value_head_size=64,
        query_size=256,
        key_size=256,
        value_size=256,
        output_size=256,
    )
    generator = Generator().manual_seed(length)
    shape = (1, length, 256) if layer else (1, 4, length, 64)
    query, key, value = (torch.randn(shape, generator=generator) for _ in range(3))
    matrices = [torch.randn(256, 256, generator=generator) / 16.0 for _ in range(4)]
    weights = golden.ProjectionWeights(**dict(zip("qkvo", matrices, strict=True)))
    return Inputs(
        geometry=geometry,
        mode="separate",
        batched=True,
        query=query,
        key=key,
        value=value,
        weights=weights if layer else None,
        generic=True,
    )


@contextmanager
def clocked(names: Iterable[tuple[Any, str]]) -> Iterator[dict[str, float]]:
    """Add up the seconds of functions of some modules inside the ``with`` block, by their names."""
    spent: dict[str, float] = {}
    kept = [(module, name, getattr(module, name)) for module, name in names]

    def with_clock(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            seconds, result = timed(lambda: function(*arguments, **keywords))
            spent[name] = spent.get(name, 0.0) + seconds
            return result

        return call

    for module, name, function in kept:
        setattr(module, name, with_clock(name, function))
    try:
        yield spent
    finally:
        for module, name, function in kept:
            setattr(module, name, function)


GOLDEN = ((conformance.oracle.oracle, "evaluate"), (conformance.oracle.extreme_logits, "evaluate"))
BOUNDS = (
    (conformance.oracle.oracle, "core_bound"),
    (conformance.oracle.oracle, "layer_bound"),
    (conformance.oracle.yardstick, "core_statistics"),
    (conformance.oracle.yardstick, "layer_statistics"),
)
EXACT = (
    (conformance.oracle.double_double, "core_output"),
    (conformance.oracle.double_double, "layer_output"),
)


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Where the seconds of one run of all clauses went."""

    total: float
    golden: float
    bounds: float
    exact: float
    candidate: float

    @property
    def dominated(self) -> bool:
        """Whether the golden or the bounds take most of the time."""
        return max(self.golden, self.bounds) > SHARE_LIMIT * self.total

    def row(self, name: str) -> str:
        """One line of a table, the parts in percent."""
        parts = (self.golden, self.bounds, self.exact, self.candidate)
        rest = self.total - sum(parts)
        shares = "".join(f"{100.0 * part / self.total:10.1f}" for part in (*parts, rest))
        return f"{name:42} {self.total:8.1f}{shares}"


SHARES_HEADING = (
    f"{'':42} {'seconds':>8}{'golden %':>10}{'bounds %':>10}{'exact %':>10}{'cand. %':>10}"
    f"{'rest %':>10}"
)


def run_shares(candidate: Candidate, profile: Profile, seed: int) -> Shares:
    """Run every clause of a candidate with clocks on the golden and on the bounds."""
    with clocked(GOLDEN) as evaluated, clocked(BOUNDS) as bounded, clocked(EXACT) as doubled:
        run = CandidateRun(candidate, profile=profile, seed=seed)
        total, _ = timed(lambda: [run.run(planned) for planned in run.planned()])
    return Shares(
        total=total,
        golden=sum(evaluated.values()),
        bounds=sum(bounded.values()),
        exact=sum(doubled.values()),
        candidate=sum(subject.candidate_seconds for subject in run.subjects),
    )


def drawn_costs(candidates: list[Candidate], profile: Profile, seed: int) -> bool:
    """Print the costs on a profile's problems; whether every worst case is cheap enough."""
    cheap = True
    for candidate in candidates:
        costs = Costs()
        for problem, dtype in default_problems(candidate, profile, seed):
            costs.add(task_for(materialise(problem, candidate), candidate, dtype).costs())
        print(costs.row(candidate.name), flush=True)
        cheap = cheap and costs.worst <= BOUND_LIMIT * costs.golden
    return cheap


def fixed_costs() -> None:
    """Print the costs on fixed sizes."""
    for kind in ("core", "layer"):
        candidate = Candidate(name=kind, declaration=declare(kind), function=len)
        for length in LENGTHS:
            costs = Costs()
            inputs = fixed_inputs(length, layer=kind == "layer")
            costs.add(task_for(inputs, candidate, "float32").costs())
            print(costs.row(f"{kind}, 4 heads of 64, {length} keys"), flush=True)


def main() -> int:
    """Measure, print, and return 1 when a limit is exceeded."""
    parser = argparse.ArgumentParser(description="Seconds of golden, bounds and candidate.")
    parser.add_argument("targets", nargs="*", default=TARGETS, metavar="TARGET")
    parser.add_argument("--profile", choices=sorted(PROFILES), default="default")
    parser.add_argument("--runs", choices=sorted(PROFILES), default="quick")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commands", nargs="*", choices=tuple(COMMANDS), help="whole commands")
    parser.add_argument(
        "--before", type=Path, metavar="TREE", help="another checkout, for --commands"
    )
    options = parser.parse_args()
    if options.commands is not None:
        print_commands(options.commands, options.before)
        return 0
    torch.set_num_threads(1)
    profile = PROFILES[options.profile]
    candidates = [c for c in resolve(options.targets) if c.golden_known and c.kind != "positions"]
    print(f"milliseconds a problem, profile {profile.name}; ratios to the golden\n{HEADING}")
    cheap = drawn_costs(candidates, profile, options.seed)
    print(f"\nmilliseconds on fixed sizes\n{HEADING}")
    fixed_costs()
    print(f"\na run of all clauses, profile {options.runs}\n{SHARES_HEADING}")
    dominated = False
    for candidate in candidates:
        shares = run_shares(candidate, PROFILES[options.runs], options.seed)
        dominated = dominated or shares.dominated
        print(shares.row(candidate.name), flush=True)
    return 0 if cheap and not dominated and candidates else 1


if __name__ == "__main__":
    sys.exit(main())
