from __future__ import annotations

import pytest
import torch
from examples import core, failing, layer, plan, problem, run_clause, try_on
from torch import Tensor

from candidates.eager import EagerCore, EagerLayer
from conformance.clauses.registry import all_clauses
from conformance.problems.fitting import fitted_geometry
from conformance.problems.space import Space

SLUGS = [clause.id for clause in all_clauses() if clause.family == "groups"]
GROUPED = problem(num_kv_heads=2)
LEGAL = {"features": ["gqa"], "masks": ["keep"]}


class Tiled(EagerCore):
    """Heads dealt out in turns."""

    def share(self, heads: Tensor, num_heads: int) -> Tensor:
        """Repeat all heads as one."""
        return heads.repeat(1, num_heads // heads.shape[1], 1, 1)


class TiledLayer(EagerLayer):
    """The same behind projections."""

    core = Tiled()


def test_four_clauses() -> None:
    """The family has the clauses that the issue names."""
    assert set(SLUGS) == {
        "groups.golden",
        "groups.equals-repeated",
        "groups.order",
        "groups.multi-query",
    }


@pytest.mark.parametrize("slug", ["groups.golden", "groups.equals-repeated", "groups.order"])
def test_tiled_heads_fail(slug: str) -> None:
    """Heads dealt out in turns fail for cores and layers; correct ones pass and bind."""
    for wrong, right in ((core(Tiled()), core()), (layer(TiledLayer), layer())):
        assert try_on(wrong, slug, GROUPED).violation is not None
        finding = try_on(right, slug, GROUPED)
        assert finding.violation is None
        assert finding.binding


def test_declared_order_is_obeyed() -> None:
    """Who declares tiled groups is right with them, and wrong with neighbours."""
    point = core().declaration.semantics.replace(
        group_order="tile", empty_rows="zeros", causal_alignment="bottom-right"
    )
    promises = {"semantics": point, "features": ["gqa"]}
    for slug in ("groups.order", "groups.equals-repeated"):
        assert run_clause(core(Tiled(), **promises), slug).status == "passed", slug
    assert failing(core(**promises), "groups.order")


def test_one_head_that_is_read_wrongly_is_detected() -> None:
    """A path for one key/value head that turns the query heads fails multi-query."""

    class Turned(EagerCore):
        def scores(self, call, key):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
            alone = call.key.shape[1] == 1 < call.query.shape[1]
            return super().scores(call.replace(query=call.query.roll(1, 1)) if alone else call, key)

    assert failing(core(Turned()), "groups.multi-query")
    pinned = {"geometry": {"num_kv_heads": 1}, **LEGAL}
    result = run_clause(core(**pinned), "groups.multi-query")
    assert (result.status, result.binding > 0) == ("passed", True)


def test_without_groups_it_does_not_apply() -> None:
    """As many key/value heads as heads: the reason is said."""
    reason = run_clause(core(features=[]), "groups.golden").reason
    assert reason == "every head has keys and values of its own"
    equal = core(features=["gqa"], geometry={"num_kv_heads": "num_heads"})
    assert run_clause(equal, "groups.golden").reason == reason


@pytest.mark.parametrize(
    "pins",
    [{}, {"num_kv_heads": 2}, {"num_heads": [1, 8]}, {"num_heads": 6, "num_kv_heads": 2}],
    ids=str,
)
def test_grouped_sizes_can_be_had(pins: dict[str, object]) -> None:
    """A space of groups has fewer key/value heads than heads, whatever is pinned."""
    candidate, space = core(geometry=pins, features=["gqa"]), Space(grouped=True)
    assert space.not_applicable(candidate) == ""
    for heads in range(1, 7):
        sizes = problem(num_heads=heads, num_kv_heads=heads).geometry
        settled = fitted_geometry(sizes, candidate, space)
        assert settled.num_kv_heads < settled.num_heads
        assert settled.num_heads % settled.num_kv_heads == 0


def test_masks_go_with_groups() -> None:
    """A masked grouped problem of a correct core passes every clause of the family."""
    for slug in SLUGS:
        finding = try_on(core(), slug, GROUPED.replace(mask=plan(), causal=True))
        assert finding.violation is None, slug
        assert torch.isfinite(torch.tensor(finding.margin or 0.0))
