"""Stages that are edited for each item of sequences or caches alone."""

from __future__ import annotations

from typing import Any

import torch
from examples import core
from torch import Tensor

from candidates.paged_attention import PROMISES, SplitPagedCore
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
