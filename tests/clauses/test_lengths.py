from __future__ import annotations

import torch
from examples import bare, core, plan, problem, try_on
from torch import Tensor

PROMISES = {"masks": [], "causal": None, "features": [], "empty_rows": "any"}


def last_tile_lost(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Keys past the last whole tile of 64 are forgotten where there is one."""
    kept = key.shape[2] // 64 * 64 or key.shape[2]
    return bare(query, key[:, :, :kept], value[:, :, :kept])


def test_lost_tail_of_a_tile_is_detected() -> None:
    """A key past the edge of a tile that is forgotten fails among 65 keys, not among 64."""
    candidate = core(last_tile_lost, **PROMISES)
    long = problem(query_length=65, key_length=65)
    finding = try_on(candidate, "numerics.any-length", long)
    assert finding.violation is not None
    whole = problem(query_length=64, key_length=64)
    assert try_on(candidate, "numerics.any-length", whole).violation is None


def test_place_is_that_of_the_whole_answer() -> None:
    """Only some rows are judged; a violation names the row of the answer."""

    def last_row_wrong(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        answer = bare(query, key, value)
        return torch.cat([answer[:, :, :-1], answer[:, :, -1:] + 1.0], dim=2)

    finding = try_on(
        core(last_row_wrong, **PROMISES), "numerics.any-length", problem(query_length=100)
    )
    assert finding.violation is not None
    assert finding.violation.where[2] == 99


def test_some_rows_of_a_causal_masked_answer_are_right() -> None:
    """What a chosen row may attend is folded into its mask: a correct core passes and binds."""
    long = problem(query_length=130, key_length=130, causal=True, mask=plan("dense"))
    finding = try_on(core(), "numerics.any-length", long)
    assert finding.violation is None
    assert finding.margin is not None
    assert finding.margin < 1.0
