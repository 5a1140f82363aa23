from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from examples import core, plan, problem, run_clause, try_on
from torch import Tensor

RULES = ("zeros", "nan", "mean-of-all", "mean-of-valid")
EMPTIED = problem(mask=plan("empty-rows"))


def kernel(rule: str) -> Any:
    """A masked core that gives empty rows a rule's answer."""

    def attend(query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None = None) -> Tensor:
        logits = query @ key.mT / math.sqrt(query.shape[-1])
        kept = torch.ones_like(logits, dtype=torch.bool) if keep is None else keep.expand_as(logits)
        empty = ~kept.any(-1, keepdim=True)
        weights = logits.masked_fill(~kept, -math.inf).softmax(-1)
        even = torch.full_like(weights, 1.0 / key.shape[2])
        filled = {"zeros": torch.zeros_like(weights), "nan": weights}.get(rule, even)
        return torch.where(empty, filled, weights) @ value

    return attend


@pytest.mark.parametrize("declared", RULES)
@pytest.mark.parametrize("actual", RULES)
def test_declared_rule_is_the_one_that_holds(declared: str, actual: str) -> None:
    """Each rule passes where it is declared and fails elsewhere; here both means agree."""
    candidate = core(kernel(actual), masks=["keep"], causal=None, features=[], empty_rows=declared)
    agree = declared == actual or {declared, actual} <= {"mean-of-all", "mean-of-valid"}
    result = run_clause(candidate, "mask.empty-row", examples=12)
    assert result.status == ("passed" if agree else "failed")


def test_one_promise_is_needed() -> None:
    """A candidate that promises nothing about empty rows is not judged on them."""
    candidate = core(kernel("nan"), masks=["keep"], causal=None, features=[], empty_rows="any")
    result = run_clause(candidate, "mask.empty-row")
    assert (result.status, result.reason) == (
        "not-applicable",
        "it promises nothing about rows without keys",
    )
    assert run_clause(candidate, "mask.empty-row-isolated").status == "passed"
    assert run_clause(candidate, "mask.golden").status == "passed"


def test_empty_row_that_poisons_others_is_detected() -> None:
    """One empty row that turns its whole head NaN disturbs the others."""

    def poison(query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None = None) -> Tensor:
        output: Tensor = kernel("nan")(query, key, value, keep)
        return output + 0.0 * output.sum(dim=2, keepdim=True)

    candidate = core(poison, masks=["keep"], causal=None, features=[], empty_rows="nan")
    assert try_on(candidate, "mask.empty-row", EMPTIED).violation is None
    finding = try_on(candidate, "mask.empty-row-isolated", EMPTIED)
    assert finding.violation is not None
    assert finding.violation.kind == "finite"


def test_refusing_empty_rows_needs_no_promise() -> None:
    """Who promises nothing may refuse a mask with empty rows; who promises may not."""

    def refuse(query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None = None) -> Tensor:
        if keep is not None and not bool(keep.any(-1).all()):
            raise ValueError
        return torch.as_tensor(kernel("nan")(query, key, value, keep))

    for rule, raises in (("any", False), ("zeros", True)):
        candidate = core(refuse, masks=["keep"], causal=None, features=[], empty_rows=rule)
        finding = try_on(candidate, "mask.empty-row-isolated", EMPTIED)
        assert (finding.violation is not None) is raises


def test_one_item_has_rows_beside_an_empty_one() -> None:
    """Where the batch is pinned to one, a mask by query still tells whether rows disturb others."""

    def blank(query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None = None) -> Tensor:
        output: Tensor = kernel("zeros")(query, key, value, keep)
        return output if keep is None or bool(keep.any(-1).all()) else torch.zeros_like(output)

    promises: dict[str, Any] = {
        "masks": ["keep"],
        "causal": None,
        "features": [],
        "empty_rows": "zeros",
        "geometry": {"batch": 1, "num_heads": 1},
    }
    assert run_clause(core(blank, **promises), "mask.empty-row-isolated").status == "failed"
    assert (
        run_clause(core(kernel("zeros"), **promises), "mask.empty-row-isolated").status == "passed"
    )


def test_masks_that_leave_no_row() -> None:
    """A mask that all rows of a single item share empties every row or none."""
    promises: dict[str, Any] = {
        "masks": ["keep"],
        "mask_shapes": ["B11K"],
        "causal": None,
        "features": [],
        "empty_rows": "zeros",
        "geometry": {"batch": 1},
    }
    result = run_clause(core(kernel("zeros"), **promises), "mask.empty-row-isolated")
    assert (result.status, result.reason) == (
        "not-applicable",
        "its masks empty every row or none",
    )


def test_rules_may_differ_by_way() -> None:
    """Each way is judged by its own rule: form, flag and the path that returns the weights."""

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        drop: Tensor | None = None,
        causal: bool = False,
        return_weights: bool = False,
    ) -> Any:
        kept = keep if drop is None else ~drop
        logits = query @ key.mT / math.sqrt(query.shape[-1])
        table = torch.ones_like(logits, dtype=torch.bool) if kept is None else kept
        if causal:
            table = table & torch.ones(logits.shape[-2:], dtype=torch.bool).tril(
                logits.shape[-1] - logits.shape[-2]
            )
        weights = logits.masked_fill(~table, -math.inf).softmax(-1)
        clean = weights if drop is not None else weights.nan_to_num()
        return (weights @ value, weights) if return_weights else clean @ value

    truth = {"keep": "zeros", "drop": "nan", "causal": "zeros", "weights": "nan"}
    clauses = ("mask.empty-row", "mask.empty-row-weights")

    def statuses(**wrong: str) -> list[str]:
        candidate = core(
            attend,
            masks=["keep", "drop"],
            causal="bottom-right",
            features=["weights"],
            empty_rows={**truth, **wrong},
        )
        return [run_clause(candidate, clause, examples=20).status for clause in clauses]

    assert statuses() == ["passed", "passed"]
    assert statuses(drop="zeros") == ["failed", "passed"]
    assert statuses(causal="nan") == ["failed", "passed"]
    assert statuses(weights="zeros") == ["passed", "failed"]
    assert statuses(keep="any", drop="any", causal="any") == ["untestable", "passed"]
