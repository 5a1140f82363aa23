# ruff: noqa: INP001, T201 (a script that prints)
# Runs in the environment of the survey for memory_efficient.
"""memory-efficient-attention-pytorch: causal with a longer context depends on the way to compute.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import torch
from memory_efficient_attention_pytorch import Attention, FlashAttention

torch.manual_seed(0)
plain = Attention(dim=12, heads=3, dim_head=4, causal=True).eval()
flash = FlashAttention(dim=12, heads=3, dim_head=4, causal=True).eval()
free = Attention(dim=12, heads=3, dim_head=4).eval()
for layer in (flash, free):
    layer.load_state_dict(plain.state_dict())
tokens, longer = torch.randn(1, 7, 12), torch.randn(1, 9, 12)
SMALL = {"q_bucket_size": 3, "k_bucket_size": 4}
SHIFTS = (2, 0, -2)


@torch.no_grad()
def answers(context: torch.Tensor) -> dict[str, torch.Tensor]:
    """What each way to compute answers, by the name of the way."""
    return {
        "at once": plain(tokens, context=context),
        "one bucket": plain(tokens, context=context, memory_efficient=True),
        "buckets": plain(tokens, context=context, memory_efficient=True, **SMALL),
        "FlashAttention, one bucket": flash(tokens, context=context),
        "FlashAttention, buckets": flash(tokens, context=context, **SMALL),
    }


@torch.no_grad()
def expected(shift: int) -> torch.Tensor:
    """The answer when a query sees the keys up to its own index plus a shift, from query 2 on."""
    rows = [free(tokens[:, i : i + 1], context=longer[:, : i + shift + 1]) for i in range(2, 7)]
    return torch.cat(rows, dim=1)


def apart(first: torch.Tensor, second: torch.Tensor) -> float:
    """The largest difference."""
    return float((first - second).abs().max())


limit = 1e-4
same = answers(tokens)
spread = max(apart(one, same["at once"]) for one in same.values())
print(f"as many keys as queries: all ways are within {spread:.2g}")
shown = {}
for name, answer in answers(longer).items():
    distances = {shift: apart(answer[:, 2:], expected(shift)) for shift in SHIFTS}
    shown[name] = [shift for shift, distance in distances.items() if distance < limit]
    print(f"7 queries, 9 keys, {name}: query i sees the keys up to i plus {shown[name]}")
wrong = spread < limit and list(shown.values()) == [[2], [0], [0], [-2], [-2]]
print("the ways align queries and keys differently" if wrong else "the defect is gone")
sys.exit(0 if wrong else 1)
