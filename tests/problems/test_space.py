from __future__ import annotations

from typing import Any

import pytest
from declared import CANDIDATES, core, layer
from examples import plan, problem

from conformance.base.geometry import FIELDS, Geometry
from conformance.declare.candidate import Candidate
from conformance.problems.fitting import fitted_geometry
from conformance.problems.recipes import HALF_PRECISION, ORDINARY, PROBES
from conformance.problems.space import WIDTHS, Space, admits_lengths, can_cross, is_fixed


@pytest.mark.parametrize(
    ("space", "candidate", "reason"),
    [
        (Space(kinds=("core",)), layer(), "it speaks of cores"),
        (Space(kinds=("positions", "layer")), core(), "it speaks of position encodings and layers"),
        (Space(causal="always"), core(), "no causal flag is declared"),
        (Space(mask="always"), core(masks=[]), "no mask is declared"),
        (
            Space(mask="always", forms=("bias",), finite_bias="always"),
            core(masks=["keep"]),
            "no additive bias is declared",
        ),
        (
            Space(mask="always", forms=("keep",)),
            core(masks=["bias", "lengths"]),
            "a mask handed over as bias, lengths cannot express it",
        ),
        (
            Space(mask="always", axes="H"),
            core(masks=["keep"], mask_shapes=["BK"]),
            "no declared mask shape has the axes H",
        ),
        (
            Space(mask="always", axes="HQ"),
            core(masks=["keep"], mask_shapes=["BK"]),
            "no declared mask shape has the axes H, Q",
        ),
        (Space(square="never"), layer(inputs="self"), "query and key have the same length"),
        (
            Space(least=(("batch", 2),)),
            layer(batched=False),
            "it takes one item without a batch axis",
        ),
        (
            Space(least=(("key_length", 2),)),
            core(geometry={"key_length": 1}),
            "its geometry pins key_length below 2",
        ),
        (
            Space(least=(("num_kv_heads", 2),)),
            core(geometry={"num_heads": 1}),
            "its geometry pins num_heads below 2",
        ),
        (
            Space(square="always"),
            core(geometry={"query_length": 4, "key_length": [5, 6]}),
            "its geometry pins query and key to different lengths",
        ),
    ],
)
def test_reason_why_no_problem_fits(space: Space, candidate: Candidate, reason: str) -> None:
    """A candidate that a space cannot reach is told the first reason, in words."""
    assert space.not_applicable(candidate) == reason


@pytest.mark.parametrize("often", ["never", "maybe", "offered"])
def test_optional_masks_exclude_nobody(often: str) -> None:
    """Only what is always needed makes a clause not applicable."""
    space = Space(mask=often, causal=often)  # type: ignore[arg-type]  # a parametrized literal
    assert space.not_applicable(core(masks=[])) == ""


def test_options_are_pairs_that_are_declared() -> None:
    """Lengths come in shapes of lengths, tables in shapes with keys."""
    declared = core(masks=["keep", "lengths"], mask_shapes=["B11K", "BQ", "BHQK"])
    assert Space().options(declared) == [("keep", "B11K"), ("keep", "BHQK"), ("lengths", "BQ")]
    assert Space(axes="Q").options(declared) == [("keep", "BHQK"), ("lengths", "BQ")]
    assert Space(forms=("lengths",)).options(declared) == [("lengths", "BQ")]
    assert Space(finite_bias="always").options(declared) == []


@pytest.mark.parametrize(
    ("name", "crosses"),
    [
        ("core", True),
        ("layer", True),
        ("layer without cross", False),
        ("layer of itself", False),
        ("layer of a memory", True),
        ("core of equal lengths", False),
        ("positions", False),
    ],
)
def test_who_can_have_unequal_lengths(name: str, crosses: bool) -> None:  # noqa: FBT001 (a table)
    """Self-attention, layers without cross-attention and pinned lengths keep them equal."""
    assert can_cross(CANDIDATES[name]) is crosses


def test_reduced_problem_must_stay_in_the_space() -> None:
    """Sizes, squareness and the mask are checked when a problem is made smaller."""
    candidate = core()
    assert Space().admits(problem(), candidate)
    assert not Space(least=(("batch", 3),)).admits(problem(), candidate)
    assert not Space(square="always").admits(problem(), candidate)
    assert not Space(mask="always").admits(problem(), candidate)
    assert Space(mask="always").admits(problem(mask=plan()), candidate)
    assert not Space().admits(problem(), CANDIDATES["layer of itself"])


def test_reduced_problem_keeps_what_the_clause_is_about() -> None:
    """A clause about causality or finite biases is not shown by a problem without them."""
    candidate = core(causal="top-left")
    assert not Space(causal="always").admits(problem(), candidate)
    assert Space(causal="always").admits(problem(causal=True), candidate)
    biased = Space(mask="always", forms=("bias",), finite_bias="always")
    assert not biased.admits(problem(mask=plan(form="bias")), candidate)
    assert biased.admits(problem(mask=plan(form="bias", finite_bias=True)), candidate)
    assert Space(mask="offered").admits(problem(), candidate)


@pytest.mark.parametrize(
    ("rule", "name", "fixed"),
    [
        (None, "batch", False),
        ({"batch": [2, 4]}, "batch", True),
        ({"batch": "num_heads"}, "batch", True),
        ({"key_length": "query_length"}, "key_length", False),
        (lambda sizes: sizes.replace(batch=2), "batch", True),
        (lambda sizes: sizes.replace(key_length=sizes.query_length), "key_length", False),
        (lambda sizes: sizes.replace(key_length=8), "key_length", True),
    ],
)
def test_sizes_that_a_geometry_decides(rule: Any, name: str, *, fixed: bool) -> None:
    """A size is fixed by a pin, by another size or by a function; a tie of both lengths is free."""
    assert is_fixed(core(geometry=rule), name) is fixed


def test_function_that_ties_the_lengths() -> None:
    """A geometry function that always makes equal lengths leaves no crossing."""
    tied = core(geometry=lambda sizes: sizes.replace(key_length=sizes.query_length))
    longer = core(
        geometry=lambda sizes: sizes.replace(key_length=max(sizes.key_length, sizes.query_length))
    )
    assert not can_cross(tied)
    assert can_cross(longer)
    assert not can_cross(core(geometry={"query_length": 8, "key_length": 8}))


def test_lengths_of_one_call() -> None:
    """A changed batch or length is asked only where the declaration allows it."""
    sizes = problem().geometry
    assert admits_lengths(core(), sizes.replace(batch=1))
    assert not admits_lengths(core(geometry={"batch": [2, 4]}), sizes.replace(batch=1))
    assert not admits_lengths(core(max_length=4), sizes.replace(query_length=5))


def test_cores_have_no_least_widths() -> None:
    """A core has no tokens: the least widths of a space are asked of layers alone."""
    wide = Space(least=tuple((name, 64) for name in WIDTHS))
    assert wide.admits(problem(), core())
    assert not wide.admits(problem(), layer())
    assert wide.admits(problem(**dict.fromkeys(WIDTHS, 64)), layer())
    assert not Space(least=(("head_size", 64), *wide.least)).admits(problem(), core())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_gets_the_probes_it_is_asked(dtype: str) -> None:
    """A space of probes keeps them in half precision; extreme recipes are left out."""
    assert Space(values=PROBES).recipes(dtype) == PROBES
    assert set(Space().recipes(dtype)) == set(HALF_PRECISION) & set(ORDINARY)
    assert Space(values=("subnormal",)).recipes(dtype) == ("normal",)
    assert Space(values=("subnormal",)).recipes("float32") == ("subnormal",)


def test_size_that_a_geometry_function_keeps_small() -> None:
    """A function that always makes one head keeps out of what needs two, as a pinned size does."""
    one_head = core(geometry=lambda sizes: sizes.replace(num_heads=1, num_kv_heads=1))
    space = Space(least=(("num_heads", 2),))
    assert space.not_applicable(one_head) == "its geometry makes num_heads smaller than 2"
    assert space.not_applicable(core(geometry=lambda sizes: sizes)) == ""
    assert Space(least=(("num_heads", 1),)).not_applicable(one_head) == ""


def test_a_long_context_costs_no_more_than_a_short_one() -> None:
    """A longest length of millions is one number: nobody lists the sizes up to it."""
    sizes = Geometry(**dict.fromkeys(FIELDS, 3))
    wanted = Space(square="never", least=(("key_length", 9),))
    short, long = (core(max_length=longest) for longest in (4096, 10**15))
    assert wanted.not_applicable(long) == wanted.not_applicable(short)
    other = fitted_geometry(sizes, long, wanted)
    assert other == fitted_geometry(sizes, short, wanted)
    assert other.key_length >= 9
    assert other.query_length != other.key_length
    assert "its longest length is below 9" in wanted.not_applicable(core(max_length=5))
    least = fitted_geometry(sizes, core(max_length=3), Space(square="never"))
    assert (least.query_length, least.key_length) == (3, 2)
