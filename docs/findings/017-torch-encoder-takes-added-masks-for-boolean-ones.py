# ruff: noqa: INP001, T201 (a script that prints)
"""torch: without gradients an encoder layer takes a mask that is added for a boolean one.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import torch
from torch import nn

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
inner = layer.self_attn
tokens = torch.randn(2, 5, 16)
slopes = -0.1 * (torch.arange(5)[:, None] - torch.arange(5)).abs()  # zero on the diagonal alone
own = slopes.masked_fill(slopes < 0, float("-inf"))  # every token sees itself alone


def refused(mask: torch.Tensor) -> bool:
    """Whether the layer refuses a mask for its element type."""
    try:
        layer(tokens, src_mask=mask)
    except RuntimeError as error:
        return "Expected attn_mask dtype" in str(error)
    return False


right = layer(tokens, src_mask=slopes).detach()
added = inner(tokens, tokens, tokens, attn_mask=slopes, need_weights=False)[0].detach()
double_with_gradients = refused(slopes.double())
with torch.no_grad():
    answer = layer(tokens, src_mask=slopes)
    alone = layer(tokens, src_mask=own)
    ones = layer(tokens, src_mask=torch.ones(5, 5))
    of_attention = inner(tokens, tokens, tokens, attn_mask=slopes, need_weights=False)[0]
    double_without = refused(slopes.double())

limit = 1e-4
apart, near = float((answer - right).abs().max()), float((answer - alone).abs().max())
inside = float((of_attention - added).abs().max())
print(f"slopes of at most 0.4: {apart:.2g} from the answer with gradients")
print(f"and {near:.2g} from that to a mask which hides all but a token itself")
print(f"the attention in it, by itself: {inside:.2g} from its answer with gradients")
print(f"ones, which no softmax sees: {int(ones.isnan().sum())} of {ones.numel()} numbers are NaN")
for name, double in {"with": double_with_gradients, "without": double_without}.items():
    print(f"slopes in float64, {name} gradients: {'refused' if double else 'taken'}")
wrong = (
    max(near, inside) < limit < apart
    and bool(ones.isnan().all())
    and double_with_gradients
    and not double_without
)
print("whatever is not zero hides" if wrong else "the defect is gone")
sys.exit(0 if wrong else 1)
