# ruff: noqa: INP001, T201 (a script that prints)
"""torch: fewer values than keys are refused by the formula, and answered by the CPU's kernel.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

torch.manual_seed(0)
query, key, value = torch.randn(1, 1, 3, 4), torch.randn(1, 1, 6, 4), torch.randn(1, 1, 2, 4)


def answer(backend: SDPBackend) -> torch.Tensor | str:
    """What a kernel says to six keys with two values."""
    try:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(query, key, value)
    except RuntimeError as error:
        return str(error)


fused, composite = answer(SDPBackend.FLASH_ATTENTION), answer(SDPBackend.MATH)
print(f"MATH: {composite}")
print(f"FLASH_ATTENTION: {fused}")
wrong = isinstance(fused, torch.Tensor) and isinstance(composite, str)
print("6 keys with 2 values are answered" if wrong else "the defect is gone")
sys.exit(0 if wrong else 1)
