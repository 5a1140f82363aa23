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


def documented(scale: float) -> torch.Tensor:
    """The code that the documentation calls equivalent."""
    visible = torch.ones(3, 5, dtype=torch.bool).tril()
    weights = (QUERY @ KEY.mT * scale).masked_fill(~visible, float("-inf"))
    return weights.softmax(-1) @ VALUE


def differs(scale: float, backend: SDPBackend) -> bool:
    """Whether a kernel answers otherwise."""
    with sdpa_kernel(backend):
        answer = scaled_dot_product_attention(QUERY, KEY, VALUE, is_causal=True, scale=scale)
    print(f"scale {scale:g}, {backend.name}: {answer[0, 0, :, 0].tolist()}")
    return not torch.allclose(answer, documented(scale), atol=1e-5)


SCALES = (0.5, 0.0, -0.5)
fused = [differs(scale, SDPBackend.FLASH_ATTENTION) for scale in SCALES]
composite = [differs(scale, SDPBackend.MATH) for scale in SCALES]
wrong = fused == [False, True, True] and not any(composite)
print("the fused kernel does not survive a scale below zero" if wrong else "the defect is gone")
sys.exit(0 if wrong else 1)
