from __future__ import annotations

import dataclasses

import pytest
from broken_promises import broken_promise
from declared import CANDIDATES, core
from examples import plan, problem

from conformance.base.geometry import FIELDS, Geometry
from conformance.problems.problem import Problem
from conformance.problems.space import Space
from conformance.running.shrinking.reduction import reduce_problem

ANY = Space(mask="maybe", causal="maybe", extras="maybe")
EVERYTHING = CANDIDATES["core with everything"]
LARGE = problem(
    batch=3,
    num_heads=6,
    num_kv_heads=3,
    query_length=40,
    key_length=33,
    head_size=64,
    value_head_size=80,
    query_size=1,
    key_size=1,
    value_size=1,
    output_size=1,
    causal=True,
    scale=1.7,
    softcap=3.0,
    window=(3, -1),
    mask=plan("random", "bias", "BHQK", finite_bias=True),
    seed=123456,
    values="cancelling",
)
TRIES = 400


def test_predicate_ends_at_the_smallest_geometry() -> None:
    """What fails from three keys on, if causal, ends at three keys and causality alone."""

    def fails(example: Problem) -> bool:
        return example.geometry.key_length >= 3 and example.causal

    reduced, used = reduce_problem(LARGE, EVERYTHING, ANY, fails, tries=TRIES)
    sizes = dataclasses.asdict(reduced.geometry)
    assert sizes == dict.fromkeys(FIELDS, 1) | {"key_length": 3}
    assert reduced.causal
    assert (reduced.mask, reduced.scale, reduced.softcap, reduced.window) == (
        None,
        None,
        None,
        None,
    )
    assert (reduced.values, reduced.seed, reduced.biases) == ("integers", 0, False)
    assert 0 < used <= TRIES


def test_products_are_reduced_too() -> None:
    """What needs two heads a group and two groups keeps exactly those."""

    def fails(example: Problem) -> bool:
        sizes = example.geometry
        return sizes.num_kv_heads >= 2 and sizes.num_heads > sizes.num_kv_heads

    reduced, _ = reduce_problem(LARGE, EVERYTHING, ANY, fails, tries=TRIES)
    assert (reduced.geometry.num_heads, reduced.geometry.num_kv_heads) == (4, 2)
    assert reduced.geometry.key_length == reduced.geometry.query_length == 1


@pytest.mark.parametrize("tries", [0, 1, 7])
def test_budget_is_respected(tries: int) -> None:
    """Never more tries than allowed, and the smallest so far is returned."""
    calls: list[Problem] = []

    def fails(example: Problem) -> bool:
        calls.append(example)
        return True

    reduced, used = reduce_problem(LARGE, EVERYTHING, ANY, fails, tries=tries)
    assert len(calls) == used <= tries
    assert (reduced == LARGE) is (tries == 0)


def test_nothing_smaller_fails() -> None:
    """A problem that fails alone is returned as it is."""
    reduced, used = reduce_problem(LARGE, EVERYTHING, ANY, lambda _: False, tries=TRIES)
    assert reduced == LARGE
    assert used > 20


def test_each_try_is_new_and_smaller() -> None:
    """No problem is tried twice in one round, and none larger than what fails already."""
    proposals: list[Problem] = []

    def fails(example: Problem) -> bool:
        proposals.append(example)
        return False

    reduce_problem(LARGE, EVERYTHING, ANY, fails, tries=TRIES)
    assert len(proposals) == len(set(proposals))
    assert LARGE not in proposals
    assert all(
        getattr(example.geometry, "batch") <= LARGE.geometry.batch  # noqa: B009
        and example.geometry.query_length <= LARGE.geometry.query_length
        for example in proposals
    )


@pytest.mark.parametrize("name", CANDIDATES)
def test_pins_are_honoured(name: str) -> None:
    """However small it gets, a problem keeps the candidate's promises."""
    candidate = CANDIDATES[name]
    space = Space(kinds=("core", "layer", "positions"))
    from conformance.problems.edges import edge_problems  # noqa: PLC0415

    start = edge_problems(candidate, space, dtype="float32")[0]
    tried: list[Problem] = []

    def fails(example: Problem) -> bool:
        tried.append(example)
        return len(tried) % 2 == 0

    reduce_problem(start, candidate, space, fails, tries=60)
    assert [broken_promise(example, candidate) for example in tried] == [""] * len(tried)


def test_clause_keeps_its_space() -> None:
    """A clause about masks, causality and sizes is never shown a problem without them."""
    space = Space(
        mask="always",
        forms=("bias",),
        finite_bias="always",
        causal="always",
        square="always",
        least=(("key_length", 3), ("batch", 2)),
    )
    start = LARGE.replace(geometry=LARGE.geometry.replace(query_length=33))
    reduced, _ = reduce_problem(start, EVERYTHING, space, lambda _: True, tries=TRIES)
    assert reduced.causal
    assert reduced.mask is not None
    assert reduced.mask.finite_bias
    assert (reduced.geometry.batch, reduced.geometry.key_length, reduced.geometry.query_length) == (
        2,
        3,
        3,
    )


@pytest.mark.parametrize(
    ("values", "dtype", "start", "end"),
    [
        (("nearly-tied", "small-near-ties"), "float32", "nearly-tied", "nearly-tied"),
        (("normal", "plain-projections"), "float16", "plain-projections", "plain-projections"),
        (("tiny", "integers"), "float32", "tiny", "integers"),
    ],
)
def test_clause_keeps_its_recipes(
    values: tuple[str, ...], dtype: str, start: str, end: str
) -> None:
    """Plainer values are tried only where the clause asks for them."""
    space = Space(mask="maybe", causal="maybe", extras="maybe", values=values)
    failing = LARGE.replace(values=start, dtype=dtype)
    reduced, _ = reduce_problem(failing, EVERYTHING, space, lambda _: True, tries=TRIES)
    assert reduced.values == end


def test_harness_faults_are_not_swallowed() -> None:
    """An exception of the predicate is the runner's to deal with."""

    def fails(_: Problem) -> bool:
        raise LookupError

    with pytest.raises(LookupError):
        reduce_problem(LARGE, core(), ANY, fails, tries=3)


def test_length_beyond_a_tile_is_found_exactly() -> None:
    """What fails from 21 keys on ends at 21 keys, by ever smaller steps."""

    def fails(example: Problem) -> bool:
        return example.geometry.key_length >= 21

    reduced, _ = reduce_problem(LARGE, EVERYTHING, ANY, fails, tries=TRIES)
    assert reduced.geometry.key_length == 21
    assert reduced.geometry.query_length == reduced.geometry.batch == 1


def test_other_clauses_counterexamples_are_tried_first() -> None:
    """What showed one failure is tried before anything else, with this problem's options."""
    small = LARGE.replace(geometry=Geometry(**dict.fromkeys(FIELDS, 1)), seed=5, values="integers")
    proposals: list[Problem] = []

    def fails(example: Problem) -> bool:
        proposals.append(example)
        return False

    reduce_problem(LARGE, EVERYTHING, ANY, fails, tries=1, reduced_problems=[LARGE, small])
    assert proposals == [LARGE.replace(geometry=small.geometry, seed=5, values="integers")]


def test_what_a_space_always_offers_stays() -> None:
    """A clause that hands over a mask where it can is not shown a problem without one."""
    space = Space(mask="offered", causal="offered", patterns=("random",))
    start = LARGE.replace(scale=None, softcap=None, window=None, values="normal")
    start = start.replace(mask=plan("random", "keep", "BHQK"))
    reduced, _ = reduce_problem(start, EVERYTHING, space, lambda _: True, tries=TRIES)
    assert reduced.causal
    assert reduced.mask is not None
    assert reduced.geometry == Geometry(**dict.fromkeys(FIELDS, 1))


def test_preferred_sizes_bind_no_reduction() -> None:
    """Sizes for a clause's power are not needed to show a failure."""
    space = Space(preferred=(("query_length", 64), ("head_size", 16)))
    start = LARGE.replace(mask=None, causal=False, scale=None, softcap=None, window=None)
    reduced, _ = reduce_problem(start, EVERYTHING, space, lambda _: True, tries=TRIES)
    assert reduced.geometry == Geometry(**dict.fromkeys(FIELDS, 1))


def test_what_does_not_help_is_not_tried_after_each_step() -> None:
    """A change after which a problem does not fail is tried again when all others have been."""
    tried: list[int] = []

    def fails(example: Problem) -> bool:
        tried.append(example.geometry.head_size)
        return example.geometry.head_size >= 8

    reduced, _ = reduce_problem(LARGE, EVERYTHING, ANY, fails, tries=TRIES)
    assert reduced.geometry.head_size == 8
    assert reduced.values == "integers"
    assert tried.count(6) <= 4  # 11 if each step began anew
