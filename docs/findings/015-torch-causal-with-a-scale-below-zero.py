# ruff: noqa: INP001, T201 (a script that prints)
"""torch: on a CPU, is_causal with a scale of zero or below answers NaN; the formula does not.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

torch.manual_seed(0)
QUERY, KEY, VALUE = torch.randn(1, 1, 3, 4), torch.randn(1, 1, 5, 4), torch.randn(1, 1, 5, 4)
VISIBLE = torch.ones(3, 5, dtype=torch.bool).tril()
LIMIT = 1e-5


def documented(scale: float, keys: int) -> torch.Tensor:
    """The code that the documentation calls equivalent."""
    logits = QUERY @ KEY[:, :, :keys].mT * scale
    weights = logits.masked_fill(~VISIBLE[:, :keys], float("-inf")).softmax(-1)
    return weights @ VALUE[:, :, :keys]


def judged(scale: float, keys: int, backend: SDPBackend) -> tuple[list[str], bool]:
    """Each row with is_causal, and whether a boolean mask that hides the same is right."""
    right = documented(scale, keys)
    key, value = KEY[:, :, :keys], VALUE[:, :, :keys]
    with sdpa_kernel(backend):
        causal = scaled_dot_product_attention(QUERY, key, value, is_causal=True, scale=scale)
        masked = scaled_dot_product_attention(
            QUERY, key, value, attn_mask=VISIBLE[:, :keys], scale=scale
        )
    rows = []
    for answer, expected in zip(causal[0, 0], right[0, 0], strict=True):
        if answer.isnan().all():
            rows.append("NaN")
        else:
            rows.append("right" if (answer - expected).abs().max() < LIMIT else "wrong")
    return rows, bool((masked - right).abs().max() < LIMIT)


wrong = True
for scale in (0.5, 0.0, -0.5):
    for keys in (5, 3):
        hides = ["NaN" if scale <= 0 and row < keys - 1 else "right" for row in range(3)]
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH):
            rows, mask = judged(scale, keys, backend)
            fused = backend is SDPBackend.FLASH_ATTENTION
            wrong &= mask and rows == (hides if fused else ["right"] * 3)
            print(f"scale {scale:g}, 3 queries, {keys} keys, {backend.name}: {rows}")
            print(f"  a boolean mask in the place of is_causal: {'right' if mask else 'wrong'}")
print("a row that hides a key is NaN by the fused kernel" if wrong else "the defect is gone")
sys.exit(0 if wrong else 1)
