"""The peak of a call: what is held at once, inside of kernels as well."""

from __future__ import annotations

import torch

from conformance.calls.memory import peak_bytes, why_unmeasured

MEGABYTE = 2**20


def test_what_is_held_at_once_counts() -> None:
    """Two tensors held together count both, one after the other only the larger."""

    def together() -> int:
        first = torch.ones(MEGABYTE // 4)
        second = torch.ones(MEGABYTE // 2)
        return len(first) + len(second)

    def in_turn() -> None:
        for size in (MEGABYTE // 4, MEGABYTE // 2):
            torch.ones(size).sum()

    assert not why_unmeasured("cpu")
    assert 3 * MEGABYTE <= peak_bytes(together, "cpu") < 3.1 * MEGABYTE
    assert 2 * MEGABYTE <= peak_bytes(in_turn, "cpu") < 2.1 * MEGABYTE


def test_what_a_kernel_allocates_inside_counts() -> None:
    """The scores that torch's operator makes are seen, though nobody holds them."""
    query = torch.rand(1, 1, 512, 8)

    def attend() -> None:
        torch.ops.aten._scaled_dot_product_attention_math(query, query, query)

    assert peak_bytes(attend, "cpu") >= 512 * 512 * 4
