"""How far the golden reference itself is from the exact answer.

``python benchmarks/golden.py [--seeds 4] [--markdown FILE]`` evaluates ``reference`` in float64 on
adversarial problems, and the second formulation under ``tests/`` (scalar loops that share no code
with it) in 60-digit arithmetic. Every value family meets every structure: masks of every kind, both
alignments, windows, caps, biases, groups, rows without keys, and each choice of ``Semantics``.

The error is given in three units. ``condition``: what relative errors of one float64 roundoff in
every product and every term can do to this answer. ``float64``: the worst-case bound of one float64
computation. ``float32``: the worst-case bound that a float32 candidate is judged by. The golden may
err by all of the second and by a millionth of the third; beyond that the script exits 1.
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.util
import itertools
import math
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import mpmath
import torch
from golden_families import (
    FAMILIES,
    LONG,
    SIZES,
    Problem,
    core_problem,
    core_structures,
    layer_problem,
    layer_structures,
)
from torch import Tensor

from conformance._golden import golden
from conformance.declare.promises import declare
from conformance.tolerance import contract_for, core_bound, layer_bound, model
from conformance.tolerance.attention_bound import is_normalised

DIGITS = 60
FLOAT32_SHARE = 1e-6


def load_second_formulation() -> ModuleType:
    """The independent formulation of the tests, which are no installed package."""
    folder = Path(__file__).resolve().parent.parent / "tests" / "second_formulation"
    spec = importlib.util.spec_from_file_location(
        "second_formulation", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        msg = f"no second formulation in {folder}: run from a checkout"
        raise ImportError(msg)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


second = load_second_formulation()


def exact_answer(problem: Problem) -> list[Any]:
    """The second formulation's output: nested lists of numbers with an exact ``value``."""
    batch, queries, keys, size, value_size = problem.sizes
    heads, kv_heads = problem.structure.heads
    sizes = second.Sizes(
        batch=batch,
        num_heads=heads,
        num_kv_heads=kv_heads,
        query_length=queries,
        key_length=keys,
        head_size=size,
        value_head_size=value_size,
    )
    named = dict(zip(("query", "key", "value"), problem.inputs, strict=True)) | problem.keywords
    plain = {n: x.tolist() if isinstance(x, Tensor) else x for n, x in named.items()}
    core = second.Problem(sizes=sizes, **plain)
    point = problem.structure.semantics
    if problem.weights is None:
        answer = second.attention(core, point)
    else:
        matrices = {n: x.tolist() for n, x in vars(problem.weights).items()}
        given = second.LayerProblem(core=core, matrices=second.Matrices(**matrices))
        answer = second.layer(given, point)
    output: list[Any] = answer.output
    return output


def errors(got: Tensor, exact: Any) -> Tensor:
    """The distance of each element from the exact one; infinite where one alone is NaN."""
    if isinstance(exact, list):
        return torch.stack([errors(one, other) for one, other in zip(got, exact, strict=True)])
    here, there = second.number(got.item()).value, exact.value
    if mpmath.isnan(there):
        return torch.tensor(0.0 if mpmath.isnan(here) else math.inf, dtype=torch.float64)
    return torch.tensor(float(abs(here - there)), dtype=torch.float64)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The largest error of one problem in three units; no condition where weights do not sum to 1.

    ``condition`` counts float64 roundoffs, the others are fractions of a bound.
    """

    problem: Problem
    condition: float | None
    float64: float
    float32: float
    elements: int

    @property
    def accurate(self) -> bool:
        """Whether the golden is good enough to judge by."""
        return self.float64 <= 1.0 and self.float32 <= FLOAT32_SHARE


def judge(problem: Problem) -> Judged:
    """Evaluate both formulations on one problem."""
    answer, condition, bounds = in_float64(problem)
    error = errors(answer, exact_answer(problem))
    return Judged(
        problem=problem,
        condition=None if condition is None else largest(error, condition),
        float64=largest(error, bounds["float64"]),
        float32=largest(error, bounds["float32"]),
        elements=error.numel(),
    )


def in_float64(problem: Problem) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
    """The golden answer, what a roundoff everywhere does to it, and the two worst-case bounds."""
    point = problem.structure.semantics
    options = problem.keywords | {"semantics": point}
    contracts = {
        dtype: replace(contract_for(declare("core"), dtype, scale_of(problem)), sides=1)
        for dtype in ("float64", "float32")
    }
    if problem.weights is None:
        core = golden.attend(*problem.inputs, **options)
        sizes = (core.query.abs(), core.key.abs(), core.value.abs())
        condition = core_condition(core, *sizes)
        bounds = {dtype: core_bound(core, contract) for dtype, contract in contracts.items()}
        return core.output, condition, bounds
    heads, kv_heads = problem.structure.heads
    layer = golden.multi_head_attention(
        *problem.inputs, problem.weights, num_heads=heads, num_kv_heads=kv_heads, **options
    )
    bounds = {dtype: layer_bound(layer, contract) for dtype, contract in contracts.items()}
    return layer.output, layer_condition(problem, layer), bounds


def scale_of(problem: Problem) -> float:
    """What the dot products are multiplied by."""
    given: float | None = problem.keywords.get("scale")
    _, _, _, size, value_size = problem.sizes
    heads, _ = problem.structure.heads
    rule = golden.scale_value(
        problem.structure.semantics, head_size=size, value_head_size=value_size, num_heads=heads
    )
    return rule if given is None else given


def core_condition(
    core: golden.Attention, query: Tensor, key: Tensor, value: Tensor
) -> Tensor | None:
    """The effect on the output of relative changes by a roundoff in each product and each term.

    The three tensors are the sums of magnitudes that query, key and value heads came from (their
    own magnitudes, unless they were projected). A change of a logit moves the output by the weight
    times the distance of value and output. Values below the smallest normal number count as it.
    """
    if not is_normalised(core.semantics):
        return None
    bias = torch.zeros(()) if core.bias is None else core.bias
    bias = bias.masked_fill(torch.isneginf(bias), 0.0).abs()
    logits = abs(core.scale) * (query @ key.transpose(-1, -2))
    logits = logits + bias * (abs(core.scale) if core.semantics.bias_order == "before-scale" else 1)
    logits = logits + core.capped.nan_to_num(neginf=0.0).abs()
    apart = (core.value.unsqueeze(2) - core.output.unsqueeze(3)).abs()
    moved = (core.weights * logits).unsqueeze(-1).mul(apart).sum(dim=3)
    size = core.weights @ value
    return (size + moved) * model.UNIT_ROUNDOFF["float64"] + model.UNDERFLOW["float64"]


def layer_condition(problem: Problem, layer: golden.MultiHeadAttention) -> Tensor | None:
    """The same through the projections."""
    weights, point = problem.weights, problem.structure.semantics
    if weights is None or weights.o is None:
        return None
    query_bias = weights.q_bias if point.query_bias else None
    key_bias = weights.k_bias if point.key_bias else None
    value_bias = weights.v_bias if point.value_bias else None
    query, key, value = problem.inputs
    core = core_condition(
        layer.core,
        _head_size(query, weights.q, query_bias, layer.core.query, problem),
        _head_size(key, weights.k, key_bias, layer.core.key, problem),
        _head_size(value, weights.v, value_bias, layer.core.value, problem),
    )
    if core is None:
        return None
    merged = golden.merge_heads(core, point)
    matrix = weights.o[:, : merged.shape[-1]].abs()
    bias = weights.o_bias if point.output_bias else None
    added = 0.0 if bias is None else bias.abs() * model.UNIT_ROUNDOFF["float64"]
    return merged @ matrix.T + added


def _head_size(
    tokens: Tensor, matrix: Tensor, bias: Tensor | None, heads: Tensor, problem: Problem
) -> Tensor:
    """The sums of magnitudes behind projected heads, in their shape ``[B, H, L, D]``."""
    point = problem.structure.semantics
    size = golden.project(tokens.abs(), matrix.abs(), None if bias is None else bias.abs())
    split = golden.split_heads(size, matrix.shape[0] // heads.shape[-1], point)
    return golden.repeat_heads(split, heads.shape[1], point)


def largest(error: Tensor, unit: Tensor) -> float:
    """The largest quotient: 0 where there is no error, infinite where it has no unit."""
    ratio = torch.where(error == 0, 0.0, error / unit).nan_to_num(nan=math.inf, posinf=math.inf)
    return float(ratio.max()) if ratio.numel() else 0.0


def problems(seeds: int) -> Iterator[Problem]:
    """Every family under every structure, cores and layers, and some longer rows."""
    numbered = itertools.count()
    for seed, family in itertools.product(range(seeds), FAMILIES):
        sizes = SIZES[seed % len(SIZES)]
        for structure in core_structures():
            yield core_problem(family, structure, sizes, next(numbered))
        for structure in layer_structures():
            yield layer_problem(family, structure, sizes, next(numbered))
    for family, structure in itertools.product(FAMILIES, core_structures()[:2]):
        yield core_problem(family, structure, LONG, next(numbered))


HEADINGS = ("", "problems", "elements", "error / condition", "error / float64", "error / float32")


def rows(title: str, groups: dict[str, list[Judged]]) -> list[tuple[str, ...]]:
    """One row a group: its name, how many problems and elements, and the largest errors."""
    lines: list[tuple[str, ...]] = [(title, *HEADINGS[1:])]
    for name, group in groups.items():
        conditions = [one.condition for one in group if one.condition is not None]
        lines.append(
            (
                name,
                f"{len(group)}",
                f"{sum(one.elements for one in group)}",
                f"{max(conditions):.2f}" if conditions else "-",
                f"{max(one.float64 for one in group):.3f}",
                f"{max(one.float32 for one in group):.1e}",
            )
        )
    return lines


def grouped(judged: list[Judged], name: Callable[[Judged], str]) -> dict[str, list[Judged]]:
    """The judged problems by a name, in order of appearance."""
    groups: dict[str, list[Judged]] = {}
    for one in judged:
        groups.setdefault(name(one), []).append(one)
    return groups


def tables(judged: list[Judged]) -> list[list[tuple[str, ...]]]:
    """By values, by structure of the core, by structure of the layer."""
    cores = [one for one in judged if one.problem.weights is None]
    layers = [one for one in judged if one.problem.weights is not None]
    by_family = grouped(judged, lambda one: one.problem.family)
    return [
        rows("values", by_family | {"all": judged}),
        rows("structure of the core", grouped(cores, lambda one: one.problem.structure.name)),
        rows("structure of the layer", grouped(layers, lambda one: one.problem.structure.name)),
    ]


def plain(table: list[tuple[str, ...]]) -> str:
    """A table for a terminal."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join(
        f"{line[0]:{widths[0]}}  "
        + "  ".join(f"{cell:>{width}}" for cell, width in zip(line[1:], widths[1:], strict=True))
        for line in table
    )


def markdown(table: list[tuple[str, ...]]) -> str:
    """A table for a page."""
    lines = [f"| {' | '.join(line)} |" for line in table]
    lines.insert(1, "|---|" + "---:|" * (len(table[0]) - 1))
    return "\n".join(lines)


def circumstances(judged: list[Judged], spent: float) -> str:
    """What was run, when and with which versions."""
    versions = f"torch {torch.__version__}, mpmath {mpmath.__version__}"
    return (
        f"{len(judged)} problems, {sum(one.elements for one in judged)} elements, {DIGITS} digits, "
        f"{spent:.0f} s; {dt.datetime.now(tz=dt.UTC).date()}, "
        f"Python {platform.python_version()}, {versions}, {platform.machine()}"
    )


def main() -> int:
    """Judge, print, and return 1 when the golden errs by more than it may."""
    parser = argparse.ArgumentParser(description="The golden against 60-digit arithmetic.")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    with second.digits(DIGITS):
        judged = [judge(problem) for problem in problems(options.seeds)]
    said = circumstances(judged, time.perf_counter() - start)
    found = tables(judged)
    print("\n\n".join([plain(table) for table in found] + [said]))
    if options.markdown is not None:
        text = "\n\n".join([f"Measured: {said}."] + [markdown(table) for table in found])
        options.markdown.write_text(text + "\n", encoding="utf-8")
    wrong = [one for one in judged if not one.accurate]
    for one in wrong:
        print(f"too far: {one.problem.family}, {one.problem.structure.name}: {one}")
    return 1 if wrong or not judged else 0


if __name__ == "__main__":
    sys.exit(main())
