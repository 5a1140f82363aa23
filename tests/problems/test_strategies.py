from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from broken_promises import broken_promise
from declared import CANDIDATES
from examples import CLAUSES

import conformance
from conformance.adapters.compiled import profile_for
from conformance.base.profile import PROFILES
from conformance.declare.candidate import Candidate
from conformance.problems.edges import edge_problems
from conformance.problems.mask_patterns import OF_SEQUENCES, PATTERNS
from conformance.problems.materialise import materialise
from conformance.problems.pool import Pool
from conformance.problems.problem import Problem
from conformance.problems.recipes import HALF_PRECISION
from conformance.problems.space import EVERY_OPTION, WIDTHS, Space
from conformance.problems.strategies import TILE_EDGES, draw_drafts, draw_problems

SPACES = list(dict.fromkeys(clause.space for clause in CLAUSES.values()))
BROAD = [
    Space(mask="maybe", causal="maybe", extras="maybe", finite_bias="maybe"),
    Space(mask="always", causal="always", square="always", least=(("key_length", 3), ("batch", 2))),
    Space(mask="offered", causal="offered", least=(("num_heads", 2), ("num_kv_heads", 2))),
    Space(kinds=("layer", "positions"), least=(("key_length", 4), ("key_size", 4))),
]


def fits(candidate: Candidate, spaces: list[Space]) -> list[Space]:
    """The spaces that speak of a candidate."""
    return [space for space in spaces if not space.not_applicable(candidate)]


def outside(problem: Problem, candidate: Candidate, space: Space) -> str:
    """Which constraint of a space a problem lies outside of, or ""."""
    plan = problem.mask
    # Combinations vary the pattern, too: a space's own are for the problems that are drawn.
    patterns = (*PATTERNS, *OF_SEQUENCES) if space.edges == "combinations" else space.patterns
    wrong = {
        "admitted": not space.admits(problem, candidate),
        "least": any(
            getattr(problem.geometry, name) < size
            for name, size in space.least
            if candidate.kind != "core" or name not in WIDTHS
        ),
        "no mask": plan is not None and space.mask == "never",
        "a mask": plan is None and space.mask == "always",
        "causal": problem.causal != (space.causal in ("always", "offered"))
        and space.causal != "maybe"
        and candidate.declaration.causal is not None,
        "values": problem.values not in space.values,
        "pattern": plan is not None and plan.pattern not in patterns,
        "form and shape": plan is not None
        and (plan.form, plan.shape) not in space.options(candidate),
        "finite bias": plan is not None
        and plan.finite_bias
        and (plan.form != "bias" or space.finite_bias == "never"),
        "extras": space.extras == "never" and (problem.scale, problem.softcap) != (None, None),
    }
    return ", ".join(name for name, broken in wrong.items() if broken)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", CANDIDATES)
def test_edges_obey_the_declaration_and_the_space(name: str) -> None:
    """Each clause has edge problems; all keep every promise and lie in the clause's space."""
    candidate = CANDIDATES[name]
    for space in fits(candidate, SPACES):
        problems = edge_problems(candidate, space, dtype="float32")
        assert problems
        for problem in problems:
            assert broken_promise(problem, candidate) == "", problem
            assert outside(problem, candidate, space) == "", problem


@pytest.mark.parametrize("name", CANDIDATES)
def test_drawn_problems_obey_the_declaration_and_the_space(name: str) -> None:
    """Every drawn problem keeps every promise, lies in its space and can be made into tensors."""
    candidate = CANDIDATES[name]
    for space in fits(candidate, BROAD):
        drawn = draw_problems(candidate, space, dtype="float32", longest=17, count=8, seed_value=1)
        assert len(drawn) == 8
        for problem in drawn:
            assert broken_promise(problem, candidate) == "", problem
            assert outside(problem, candidate, space) == "", problem
            inputs = materialise(problem, candidate)
            assert inputs.score_shape[2:] == (inputs.query.shape[-2], inputs.key.shape[-2])


@pytest.mark.parametrize("name", ["core with everything", "layer of itself", "positions"])
def test_same_seed_same_problems(name: str) -> None:
    """A seed decides the problems, and another seed others."""

    def drawn(seed: int) -> list[Problem]:
        space = Space(kinds=("core", "layer", "positions"))
        return draw_problems(
            CANDIDATES[name], space, dtype="float32", longest=40, count=10, seed_value=seed
        )

    assert drawn(5) == drawn(5)
    assert drawn(5) != drawn(6)


def test_a_seed_draws_the_same_once_more() -> None:
    """Drafts follow from length, count and seed alone."""
    before = draw_drafts(longest=40, count=20, seed_value=7)
    draw_drafts.cache_clear()
    assert draw_drafts(longest=40, count=20, seed_value=7) == before
    assert draw_drafts(longest=40, count=20, seed_value=8) != before


def test_problems_are_diverse() -> None:
    """Forty problems of an unpinned core have thirty geometries and most recipes."""
    space = BROAD[0]
    drawn = draw_problems(
        CANDIDATES["core with everything"],
        space,
        dtype="float32",
        longest=40,
        count=40,
        seed_value=0,
    )
    assert len({problem.geometry for problem in drawn}) >= 30
    assert len({problem.values for problem in drawn}) >= 6
    assert len({problem.seed for problem in drawn}) >= 10
    assert len({problem.mask and problem.mask.form for problem in drawn}) == 4
    assert {problem.causal for problem in drawn} == {True, False}
    assert any(p.geometry.num_heads != p.geometry.num_kv_heads for p in drawn)
    assert any(p.geometry.query_length > p.geometry.key_length for p in drawn)
    assert any(p.geometry.key_length in TILE_EDGES for p in drawn)


def test_pinned_space_is_filled_with_seeds() -> None:
    """A space of one geometry still gives as many problems as are asked for, all different."""
    sizes = dict.fromkeys(("batch", "num_heads", "query_length", "key_length", "head_size"), 2)
    candidate = CANDIDATES["core without masks"]
    pins = dataclasses.replace(
        candidate.declaration.pins, sizes={k: (v,) for k, v in sizes.items()}
    )
    pinned = dataclasses.replace(
        candidate, declaration=dataclasses.replace(candidate.declaration, pins=pins)
    )
    drawn = draw_problems(
        pinned, Space(values=("normal",)), dtype="float32", longest=40, count=60, seed_value=0
    )
    assert len(drawn) == len(set(drawn)) == 60


@pytest.mark.parametrize("longest", [1, 5, 40, 513])
def test_lengths_stay_below_the_longest(longest: int) -> None:
    """No length exceeds the profile's by more than the few short ones."""
    drawn = draw_problems(
        CANDIDATES["core"], Space(), dtype="float32", longest=longest, count=30, seed_value=0
    )
    most = max(max(p.geometry.query_length, p.geometry.key_length) for p in drawn)
    assert most <= max(longest, 9)


def test_long_axes_are_one_at_a_time() -> None:
    """Long keys come with few queries and the reverse: a square of both would cost too much."""
    drawn = draw_problems(
        CANDIDATES["core"], Space(), dtype="float32", longest=513, count=60, seed_value=0
    )
    assert all(min(p.geometry.query_length, p.geometry.key_length) <= 9 for p in drawn)
    assert any(max(p.geometry.query_length, p.geometry.key_length) > 100 for p in drawn)


def test_half_precision_leaves_extreme_recipes_out() -> None:
    """Half precision has no room for the extreme values."""
    drawn = draw_problems(
        CANDIDATES["core"], Space(), dtype="float16", longest=9, count=20, seed_value=0
    )
    assert {problem.values for problem in drawn} <= set(HALF_PRECISION)
    assert {problem.dtype for problem in drawn} == {"float16"}


def attend(query: Any, key: Any, value: Any, **options: Any) -> Any:
    """No attention at all: it is never called."""
    raise NotImplementedError(query, key, value, options)


def test_where_each_size_is_compiled_few_sizes_are_drawn() -> None:
    """A function of JAX arrays meets few sizes over all clauses, every problem in its space."""
    options: dict[str, Any] = {
        "masks": ["keep", "bias"],
        "causal": "top-left",
        "features": ["scale", "gqa"],
    }
    sizes = {}
    for arrays in ("numpy", "jax"):
        candidate = conformance.core(arrays=arrays, **options)(attend)
        spaces = fits(candidate, [space for space in SPACES if space.edges != "lengths"])
        drawn = [
            (problem, space)
            for space in spaces
            for problem in (
                *edge_problems(candidate, space, dtype="float32", most=12),
                *draw_problems(
                    candidate, space, dtype="float32", longest=40, count=8, seed_value=0
                ),
            )
        ]
        assert not any(outside(problem, candidate, space) for problem, space in drawn)
        sizes[arrays] = {problem.geometry for problem, _ in drawn}
    assert 7 <= len(sizes["jax"]) <= len(sizes["numpy"]) / 4


def test_few_sizes_are_those_that_hide_and_show_mistakes() -> None:
    """One of all, all alike, all different, shared heads, and lengths past a tile both ways."""
    candidate = conformance.core(arrays="jax", features=["gqa"])(attend)
    made = {p.geometry for p in edge_problems(candidate, Space(), dtype="float32")}
    assert len(made) == 7
    lengths = [(g.query_length, g.key_length) for g in made]
    shapes = [(g.batch, g.num_heads, *of, g.head_size) for g, of in zip(made, lengths, strict=True)]
    assert (1,) * 5 in shapes
    assert any(len(set(shape)) == 1 and shape[0] > 1 for shape in shapes)
    assert any(len(set(shape)) == len(shape) for shape in shapes)
    assert any(g.num_kv_heads not in (1, g.num_heads) for g in made)
    assert any(queries > 16 and keys < 16 for queries, keys in lengths)
    assert any(queries < 16 and keys > 32 for queries, keys in lengths)


def test_few_sizes_are_tried_with_fewer_problems() -> None:
    """What compiles each size has fewer examples and reductions; torch's functions have all."""
    jax, torch = (conformance.core(arrays=arrays)(attend) for arrays in ("jax", "torch"))
    quick = PROFILES["quick"]
    few = profile_for(jax, quick)
    assert few.examples < quick.examples / 2
    assert few.edges is not None
    assert few.edges < few.examples
    assert few.reductions < quick.reductions
    assert profile_for(torch, quick) is quick
    together = EVERY_OPTION.replace(edges="combinations")
    whole = edge_problems(jax, together, dtype="float32")
    assert len(whole) > 1
    one = dataclasses.replace(few, edges=1)
    assert Pool(jax, one, 0).problems(together, "float32")[: len(whole)] == whole


def test_pairs_of_options_are_met_by_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forms of masks meet one query, and causality, more often than in drafts as they come."""
    candidate, space = CANDIDATES["core with everything"], Space(mask="maybe", causal="maybe")

    def pairs_met(oversampling: int) -> int:
        monkeypatch.setattr("conformance.problems.strategies.OVERSAMPLING", oversampling)
        met = set()
        for seed in range(6):
            for one in Pool(candidate, PROFILES["quick"], seed).problems(space, "float32"):
                form = one.mask and one.mask.form
                met.add((seed, form, one.geometry.query_length == 1))
                met.add((seed, form, "causal" if one.causal else "not causal"))
        return len(met)

    most = (
        6 * len(("one query", "several", "causal", "not")) * (len(candidate.declaration.masks) + 1)
    )
    assert pairs_met(1) < pairs_met(6) <= most
    assert pairs_met(6) > 0.95 * most


def test_what_others_show_is_not_drawn_again() -> None:
    """Of problems without masks and causal ones those are drawn that the others beside lack."""
    candidate, space = CANDIDATES["core with everything"], Space(mask="maybe", causal="maybe")

    def drawn(beside: list[Problem]) -> list[Problem]:
        settings: dict[str, Any] = {"dtype": "float32", "longest": 40, "seed_value": 3}
        return draw_problems(candidate, space, count=3, beside=beside, **settings)

    plain = drawn([])
    assert not set(drawn(plain)) & set(plain)
