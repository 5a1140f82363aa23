from __future__ import annotations

import pytest
import torch

from conformance.adapters.packing import FUSED_LAYOUTS, HeadSizes, pack, supports, unpack

EQUAL = HeadSizes(num_heads=3, num_kv_heads=3, head_size=4, value_head_size=4)
GROUPED = HeadSizes(num_heads=6, num_kv_heads=2, head_size=4, value_head_size=5)


@pytest.mark.parametrize("tail", [(), (5,)], ids=["bias", "matrix"])
@pytest.mark.parametrize("layout", FUSED_LAYOUTS)
@pytest.mark.parametrize("roles", ["q", "kv", "qkv", "vkq"])
@pytest.mark.parametrize("sizes", [EQUAL, GROUPED], ids=["equal", "grouped"])
def test_unpack_is_the_inverse_of_pack(
    roles: str, layout: str, sizes: HeadSizes, tail: tuple[int, ...]
) -> None:
    """What is packed comes out unchanged, role by role, in every layout the sizes allow."""
    parts = {role: torch.randn(sizes.rows(role), *tail) for role in roles}
    if not supports(layout, roles, sizes):
        assert sizes is GROUPED or len(roles) == 1
        return
    packed = pack(parts, roles, layout, sizes)
    assert packed.shape == (sum(part.shape[0] for part in parts.values()), *tail)
    for role, part in unpack(packed, roles, layout, sizes).items():
        assert torch.equal(part, parts[role])


def test_layouts_differ() -> None:
    """No two layouts put the same rows in the same order."""
    parts = {role: torch.arange(12.0) + 12 * number for number, role in enumerate("qkv")}
    orders = {tuple(pack(parts, "qkv", layout, EQUAL).tolist()) for layout in FUSED_LAYOUTS}
    assert len(orders) == len(FUSED_LAYOUTS)
