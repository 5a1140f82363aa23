# ruff: noqa: INP001, T201 (a script that prints)
"""torch: attn_mask with is_causal is documented as an error, and answered by the CPU's kernel.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

torch.manual_seed(0)
QUERY = torch.randn(1, 2, 3, 4)
KEY, VALUE = torch.randn(2, 1, 2, 5, 4)
MASK = torch.randn(3, 5)
CAUSAL = torch.full((3, 5), float("-inf")).triu(1)
REFUSAL = "Explicit attn_mask should not be set when is_causal=True"


def said(*, query: bool = False, mask: bool = False, only: SDPBackend | None = None) -> str:
    """What a call with both does: "answers", or the error; with gradients of one argument."""
    arguments = QUERY.clone().requires_grad_(query), KEY, VALUE, MASK.clone().requires_grad_(mask)
    try:
        if only is None:
            scaled_dot_product_attention(*arguments, is_causal=True)
        else:
            with sdpa_kernel(only):
                scaled_dot_product_attention(*arguments, is_causal=True)
    except RuntimeError as error:
        return str(error)
    return "answers"


both = scaled_dot_product_attention(QUERY, KEY, VALUE, MASK, is_causal=True)
apart = {
    name: float((scaled_dot_product_attention(QUERY, KEY, VALUE, mask) - both).abs().max())
    for name, mask in {
        "the sum of both": MASK + CAUSAL,
        "the mask": MASK,
        "the causal one": CAUSAL,
    }.items()
}
for name, difference in apart.items():
    print(f"a mask and is_causal: {difference:.2g} from {name} as a mask")
results = {
    "a mask and is_causal": said(),
    "the same, FLASH_ATTENTION": said(only=SDPBackend.FLASH_ATTENTION),
    "the same, MATH": said(only=SDPBackend.MATH),
    "the same, with gradients of the query": said(query=True),
    "the same, with gradients of the mask": said(mask=True),
}
for name, result in results.items():
    print(f"{name}: {result}")
answered = [result == "answers" for result in results.values()]
refused = [REFUSAL in result for result in results.values()]
limit = 1e-4
summed = apart["the sum of both"] < limit < min(apart["the mask"], apart["the causal one"])
wrong = (
    summed
    and answered == [True, True, False, True, False]
    and refused == [not one for one in answered]
)
print("whether it is refused depends on the kernel" if wrong else "the defect is gone")
sys.exit(0 if wrong else 1)
