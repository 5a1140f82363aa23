# ruff: noqa: INP001, T201 (a script that prints)
"""torch: attn_mask with is_causal is documented as an error, and answered by the CPU's kernel.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import torch
from torch.nn.functional import scaled_dot_product_attention

torch.manual_seed(0)


def said(*, gradients: bool) -> str:
    """What a call with both does: "answers", or the error."""
    query = torch.randn(1, 2, 3, 4, requires_grad=gradients)
    key, value = torch.randn(2, 1, 2, 5, 4)
    mask = torch.zeros(3, 5, requires_grad=gradients)
    try:
        scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=True)
    except RuntimeError as error:
        return str(error)
    return "answers"


plain, learned = said(gradients=False), said(gradients=True)
print(f"a mask and is_causal: {plain}")
print(f"the same with a mask that is learned: {learned}")
wrong = plain == "answers" and learned != "answers"
print("whether it is refused depends on the kernel" if wrong else "the defect is gone")
sys.exit(0 if wrong else 1)
