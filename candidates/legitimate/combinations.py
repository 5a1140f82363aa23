"""A causal flag and a mask that do not both count: one replaces the other, or both are refused."""

from __future__ import annotations

import torch
from torch import Tensor

from conformance import Semantics

from ._kit import admitted, core, factor, soften

TOP_LEFT = Semantics(causal_alignment="top-left")


def _attend(
    query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None, *, causal: bool
) -> Tensor:
    """Eager attention, its triangle at the first query and key."""
    table = admitted(query, key, keep, causal=False)
    if causal:
        table = table & torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
    return soften(query @ key.mT * factor(query, None), table) @ value


@core(
    features=[],
    causal="top-left",
    semantics=TOP_LEFT.replace(causal_combination="mask-only", one_query_causal=False),
)
def mask_replaces_flag(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """As ``sdpa_attention_forward`` of transformers: causal unless masked or of one query."""
    causal = causal and keep is None and query.shape[2] > 1
    return _attend(query, key, value, keep, causal=causal)


@core(
    features=[],
    causal="top-left",
    always_causal=True,
    semantics=TOP_LEFT.replace(causal_combination="mask-only", one_query_causal=False),
)
def causal_unless_masked(
    query: Tensor, key: Tensor, value: Tensor, *, keep: Tensor | None = None
) -> Tensor:
    """The same without a flag, as GPT-2 of transformers under SDPA: a mask brings its triangle."""
    return _attend(query, key, value, keep, causal=keep is None and query.shape[2] > 1)


@core(
    features=[],
    causal="top-left",
    semantics=TOP_LEFT.replace(causal_combination="causal-only"),
)
def flag_replaces_mask(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """A kernel with a causal path that knows no mask."""
    admitted(query, key, keep, causal=False)
    return _attend(query, key, value, None if causal else keep, causal=causal)


@core(
    features=[],
    causal="top-left",
    semantics=TOP_LEFT.replace(causal_combination="refused"),
)
def flag_or_mask(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """As torch's own attention: raises ValueError where both are given."""
    if causal and keep is not None:
        msg = "a causal call takes no mask"
        raise ValueError(msg)
    return _attend(query, key, value, keep, causal=causal)


CANDIDATES = [mask_replaces_flag, causal_unless_masked, flag_replaces_mask, flag_or_mask]
