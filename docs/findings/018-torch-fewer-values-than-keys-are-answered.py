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


def refusal(backend: SDPBackend) -> str:
    """What a kernel says against six keys with two values, "" where it answers."""
    try:
        with sdpa_kernel(backend):
            scaled_dot_product_attention(query, key, value)
    except RuntimeError as error:
        return str(error)
    return ""


fused, composite = refusal(SDPBackend.FLASH_ATTENTION), refusal(SDPBackend.MATH)
print(f"6 keys, 2 values, MATH: {composite or 'answers'}")
print(f"6 keys, 2 values, FLASH_ATTENTION: {fused or 'answers'}")
wrong = not fused and bool(composite)
if wrong:
    answer = scaled_dot_product_attention(query, key, value)
    first = scaled_dot_product_attention(query, key[:, :, :2], value)
    apart = float((answer - first).abs().max())
    print(f"with no kernel named: answers, {apart:.2g} from attention to the first 2 keys")
    limit = 1e-5
    wrong = apart < limit
print("the last 4 of 6 keys are left out" if wrong else "the defect is gone")
sys.exit(0 if wrong else 1)
