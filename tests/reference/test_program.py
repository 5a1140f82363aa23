"""Programs of named stages, edits of them, and what a run keeps."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from golden_problems import Shape, core_case, points
from hypothesis import given

from reference import LEARNED, STANDARD, Edit, Program, Run, Stage, attend, forward

MADE: list[str] = []


def noted(name: str, value: int) -> int:
    """A value, noting that it was made."""
    MADE.append(name)
    return value


SUMS = Program.unedited(
    Stage("twice", "", lambda given: noted("twice", 2 * given)),
    Stage("more", "", lambda twice, other: noted("more", twice + other)),
    Stage("negative", "", lambda other: noted("negative", -other)),
)


def test_results_are_made_when_they_are_asked_for_and_kept() -> None:
    """A result is made with what it needs, once; a name that is no stage is a KeyError."""
    MADE.clear()
    run = Run(SUMS, {"given": 3, "other": 1})
    assert (run["more"], run["more"], run["given"]) == (7, 7, 3)
    assert MADE == ["twice", "more"]
    run.forget_but(["twice"])
    assert run["more"] == 7
    assert MADE == ["twice", "more", "more"]
    with pytest.raises(KeyError, match="less"):
        run["less"]


def test_edits_replace_a_rule_or_change_a_result() -> None:
    """The last rule counts, changes follow each other, and a condition reads results, too."""
    given_values = {"given": 3, "other": 1}
    rule = Edit("twice", lambda given, other: 10 * given + other)
    assert Run(SUMS.edited([rule]), given_values)["more"] == 32
    change = Edit("twice", change=lambda result: result + 1)
    assert Run(SUMS.edited([change, rule, change]), given_values)["twice"] == 32
    when = Edit("twice", lambda: 0, when=lambda other: other > 1)
    assert Run(SUMS.edited([when]), given_values)["twice"] == 6
    assert Run(SUMS.edited([when]), given_values | {"other": 2})["twice"] == 0
    bound = Edit("twice", partial(lambda given, factor: given * factor, factor=5))
    assert Run(SUMS.edited([bound]), given_values)["twice"] == 15


def test_an_edited_run_takes_over_what_the_edit_does_not_reach() -> None:
    """Stages before the edit, and beside it, are not made again."""
    run = Run(SUMS, {"given": 3, "other": 1}).complete()
    MADE.clear()
    assert run.edited(Edit("more", lambda twice: noted("edited", twice))).complete()["more"] == 6
    assert MADE == ["edited"]
    assert run.edited(other=2)["more"] == 8
    assert run.edited(other=2)["negative"] == -2
    assert run["more"] == 7


@given(points())
def test_stages_come_in_an_order_in_which_they_can_be_made(point: object) -> None:
    """At every point each stage reads given values and stages before it."""
    assert isinstance(point, type(STANDARD))
    known = {"given_query", "given_key", "given_value", "keep", "lengths", "given_bias"}
    known |= {"causal", "window", "given_scale", "softcap", "given_sinks", "rotary_tables"}
    known |= {"given_tables", "turned_keys", "query_positions", "key_positions", *LEARNED}
    for name, step in forward.FORWARD.edited(point.edits()).steps.items():
        assert step.reached <= known, name
        known.add(name)


def test_a_mistake_is_an_edit() -> None:
    """Attention without its scale, from the stages of a golden evaluation."""
    inputs = core_case(Shape()).inputs
    unscaled = attend(*inputs).run.edited(Edit("scores", lambda products: products))
    assert torch.equal(unscaled["output"], attend(*inputs, scale=1.0).output)
    hidden = attend(*inputs).run.edited(Edit("masked", lambda biased: biased - math.inf))
    assert bool((hidden["weights"] == 0.0).all())


def test_problems_of_equal_sizes_run_at_once() -> None:
    """A leading axis of problems gives each the answer that it has alone."""
    several = [core_case(Shape(seed=seed)).inputs for seed in range(3)]
    alone = [attend(*inputs, causal=True) for inputs in several]
    stacked = [torch.stack(tensors).double() for tensors in zip(*several, strict=True)]
    together = alone[0].run.edited(
        **dict(zip(("given_query", "given_key", "given_value"), stacked, strict=True))
    )
    assert torch.allclose(together["output"], torch.stack([each.output for each in alone]))


def test_given_values_are_edited_like_stages() -> None:
    """What is given can be changed, on a condition, and what is made of it follows."""
    run = Run(SUMS, {"given": 3, "other": 1}).complete()
    more = Edit("given", change=lambda given, other: given + other)
    assert "given" in run
    assert "less" not in run
    assert (run.edited(more)["given"], run.edited(more)["more"]) == (4, 9)
    assert run.edited(more, more)["given"] == 5
    assert run.edited(more).edited(more)["given"] == 5
    never = Edit("given", lambda: 0, when=lambda other: other > 1)
    assert run.edited(never)["given"] == 3
    assert run["given"] == 3


def test_one_edit_can_be_asked_for_alone() -> None:
    """Whether it is made, and of what, without a run of its own; what is not given stays so."""
    run = Run(SUMS, {"given": 3, "other": None})
    assert run.remade(Edit("twice", lambda given: given, change=lambda result: -result)) == -3
    assert run.remade(Edit("other", change=lambda result: result + 1)) is None
    assert run.holds(Edit("twice", lambda: 0))
    assert not run.holds(Edit("twice", lambda: 0, when=lambda other: other is not None))
