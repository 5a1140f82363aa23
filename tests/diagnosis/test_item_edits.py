"""Stages that are edited for each item of sequences or caches alone."""

from __future__ import annotations

from typing import Any

import torch
from examples import core
from torch import Tensor

from candidates.paged_attention import PROMISES, PagedCore, SplitPagedCore
from conformance.clauses.subject import Subject
from conformance.diagnosis import diagnose


class Halves(SplitPagedCore):
    """The answers to the halves of an item's keys, averaged without their log-sum-exps."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, end: int, **options: Any) -> Tensor:
        """Cut an item's keys in the middle."""
        self.keys_of_a_part = max(1, -(-len(key) // 2))
        return super().attend(query, key, value, end, **options)

    def merged(self, outputs: Tensor, sums: Tensor) -> Tensor:
        """Average the outputs ``[parts, H, Lq, D]``."""
        return outputs.masked_fill((sums == -torch.inf)[..., None], 0.0).mean(dim=0)


def test_parts_of_the_keys_of_each_item_are_told() -> None:
    """Items have different numbers of keys, and halves of their own."""
    subject = Subject(core(Halves(), **PROMISES, masks=[], page_sizes=[2, 4]), "float32")
    (entry,) = diagnose(subject)
    assert entry["text"] == (
        "the softmax is made of a softmax of each of 2 parts of the keys, averaged"
    )


class WindowInPages(PagedCore):
    """The left edge of a window goes back to the first key of its page."""

    def __call__(self, query: Tensor, key_cache: Tensor, value_cache: Tensor, **given: Any) -> Any:
        """Remember how many keys a page holds."""
        self.page = key_cache.shape[1]
        return super().__call__(query, key_cache, value_cache, **given)

    def logits(self, query: Tensor, key: Tensor, end: int, **options: Any) -> Tensor:
        """Show more keys than the window does."""
        left, right = options.pop("window", None) or (-1, -1)
        logits = super().logits(query, key, end, **options)
        keys, places = torch.arange(len(key)), self.places(len(query), end)[:, None]
        hidden = (keys < (places - left).clamp(min=0) // self.page * self.page) & (left >= 0)
        return logits.masked_fill(hidden | ((keys > places + right) & (right >= 0)), -torch.inf)


def test_a_tile_may_be_a_page() -> None:
    """Pages of 2 and of 4 keys are told as pages, and not as tiles of either."""
    subject = Subject(core(WindowInPages(), **PROMISES, masks=[], page_sizes=[2, 4]), "float32")
    (entry,) = diagnose(subject)
    assert entry["text"] == (
        "the table of the window is made with the whole page of keys in which it begins"
    )
