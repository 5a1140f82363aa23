"""The keys that queries may attend: the tables of a call without its tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .checks import check_argument, check_window
from .choices import choose_point
from .forward import TABLES
from .program import Run
from .semantics import Semantics


def structural_mask(
    query_length: int,
    key_length: int,
    *,
    causal: bool,
    window: tuple[int, int] | None,
    semantics: Semantics,
    rows: Tensor | None = None,
    positions: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Keys admitted by causality and window: bool ``[Lq, Lk]``, True if query i may attend key j.

    Query i stands at key position ``i + Lk - Lq`` under bottom-right alignment and at ``i`` under
    top-left. ``window=(left, right)`` admits ``left`` keys before and ``right`` keys after the
    position; -1 means no limit (the convention of FlashAttention's ``window_size``). ``rows``
    (int64 ``[R]``) selects queries: ``[R, Lk]``. ``positions`` are the positions ``[B, Lq]`` and
    ``[B, Lk]`` that a call gives: where causality goes by them the result is ``[B, 1, Lq, Lk]``.

    Raises ValueError for a negative length or a window other than two integers from -1.
    """
    for name, length in (("query_length", query_length), ("key_length", key_length)):
        check_argument(length >= 0, name, f"is {length}, which is negative")
    check_window(window)
    shape = (1, 1, query_length, key_length)
    structure: Tensor = _tables(
        shape, semantics, rows, positions=positions, causal=causal, window=window
    )["structure"]
    return structure


def attended_keys(
    shape: tuple[int, int, int, int],
    *,
    keep: Tensor | None,
    bias: Tensor | None,
    causal: bool,
    window: tuple[int, int] | None,
    semantics: Semantics,
    device: torch.device,
    rows: Tensor | None = None,
    positions: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """The keys that queries may attend under all given rules: bool ``[B, H, Lq, Lk]``.

    ``shape`` is the shape of the scores. ``rows`` (int64 ``[R]``) selects queries, in the masks as
    well: ``[B, H, R, Lk]``.
    """
    options = {"keep": keep, "given_bias": bias, "causal": causal, "window": window}
    attended: Tensor = _tables(shape, semantics, rows, device, positions=positions, **options)[
        "attended"
    ]
    return attended


def _tables(
    shape: tuple[int, int, int, int],
    semantics: Semantics,
    rows: Tensor | None,
    device: torch.device | None = None,
    *,
    positions: tuple[Tensor, Tensor] | None,
    **options: Any,
) -> Run:
    queries, keys = (None, None) if positions is None else positions
    if queries is not None and rows is not None:
        queries = queries[..., rows]
    given = {
        **dict.fromkeys(("keep", "lengths", "given_bias", "bias_k")),
        "query_positions": queries,
        "key_positions": keys,
        "given_query": torch.empty(*shape[:3], 0, device=device),
        "given_key": torch.empty(*shape[:2], shape[3], 0, device=device),
        **options,
    }
    run = Run(choose_point(TABLES, semantics), given)
    return run if rows is None else run.edited(positions=run["positions"][rows])
