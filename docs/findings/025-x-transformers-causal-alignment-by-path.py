# ruff: noqa: INP001, T201 (a script that prints)
# Runs in the environment of the survey for x_transformers.
"""x-transformers: causal with fewer keys than queries is aligned by the way to compute.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import torch
from x_transformers.x_transformers import Attention

torch.manual_seed(0)
plain = Attention(dim=12, heads=3, dim_head=4, causal=True).eval()
fused = Attention(dim=12, heads=3, dim_head=4, causal=True, flash=True).eval()
free = Attention(dim=12, heads=3, dim_head=4).eval()
for layer in (fused, free):
    layer.load_state_dict(plain.state_dict())
tokens = torch.randn(1, 7, 12)
SHIFTS = (2, 0, -2)


@torch.no_grad()
def answer(layer: torch.nn.Module, queries: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
    """What a layer answers, without what else it returns."""
    one = layer(queries, context=context)
    return one[0] if isinstance(one, tuple) else one


def seen(layer: torch.nn.Module, context: torch.Tensor) -> list[int]:
    """The shifts from a query's index to its last visible key that fit the rows from the third on.

    Those rows see keys in either alignment.
    """
    rows = answer(layer, tokens, context)[:, 2:]
    shifts = []
    for shift in SHIFTS:
        expected = torch.cat(
            [answer(free, tokens[:, i : i + 1], context[:, : i + shift + 1]) for i in range(2, 7)],
            dim=1,
        )
        if (rows - expected).abs().max() < LIMIT:
            shifts.append(shift)
    return shifts


LIMIT = 1e-4
shown = {}
for keys in (9, 7, 5):
    context = torch.randn(1, keys, 12)
    shown[keys] = seen(plain, context), seen(fused, context)
    for flash, shifts in zip((False, True), shown[keys], strict=True):
        print(f"7 queries, {keys} keys, flash={flash}: query i sees the keys up to i plus {shifts}")
wrong = shown == {9: ([2], [2]), 7: ([0], [0]), 5: ([-2], [0])}
print("flash=True aligns fewer keys differently" if wrong else "the defect is gone")
sys.exit(0 if wrong else 1)
