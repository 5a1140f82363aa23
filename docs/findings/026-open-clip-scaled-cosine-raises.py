# ruff: noqa: INP001, T201 (a script that prints)
# Runs in the environment of the survey for open_clip.
"""open_clip: Attention with scaled_cosine=True raises in every call.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import cpu_torchvision  # noqa: F401 (lets open_clip be imported beside torch's build for CPUs)
import torch
from open_clip.transformer import Attention, CustomResidualAttentionBlock
from torch import nn

torch.manual_seed(0)
REFUSAL = "batch1 must be a 3D tensor"
tokens = torch.randn(2, 7, 12)
mask = torch.zeros(7, 7)


def without_function(layer: Attention) -> Attention:
    """The layer, as where torch has no scaled_dot_product_attention."""
    layer.use_fsdpa = False
    return layer


def said(layer: nn.Module, attn_mask: torch.Tensor | None = None) -> str:
    """What a call does."""
    try:
        return f"answers {list(layer.eval()(tokens, attn_mask=attn_mask).shape)}"
    except RuntimeError as error:
        return f"raises {error}"


plain, cosine = Attention(12, num_heads=3), Attention(12, num_heads=3, scaled_cosine=True)
raising = {
    "scaled_cosine=True": said(cosine),
    "scaled_cosine=True, with a mask": said(cosine, mask),
    "scaled_cosine=True, without torch's function": said(without_function(cosine)),
    "scaled_cosine=False, without torch's function": said(without_function(plain)),
    "a block with scale_cosine_attn=True": said(
        CustomResidualAttentionBlock(12, 3, scale_cosine_attn=True)
    ),
}
answering = {
    "scaled_cosine=False": said(Attention(12, num_heads=3)),
    "a block without it": said(CustomResidualAttentionBlock(12, 3)),
}
torch.bmm = torch.matmul
answering["scaled_cosine=True, with matmul for bmm"] = said(cosine)
answering["scaled_cosine=False, without torch's function, with matmul for bmm"] = said(plain)
for name, result in {**raising, **answering}.items():
    print(f"{name}: {result}")
wrong = all(REFUSAL in one for one in raising.values()) and all(
    one.startswith("answers") for one in answering.values()
)
print("scaled_cosine=True has no answer" if wrong else "the defect is gone")
sys.exit(0 if wrong else 1)
