# ruff: noqa: INP001, T201 (a script that prints)
# Runs in the environment of the survey for monai.
"""MONAI: by torch's function weights are dropped in evaluation mode.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import torch
from monai.networks.blocks.crossattention import CrossAttentionBlock
from monai.networks.blocks.selfattention import SABlock

torch.manual_seed(0)
tokens = torch.randn(2, 5, 12)
differs = {}
for block in (SABlock, CrossAttentionBlock):
    for flash in (False, True):
        layer = block(12, 3, dropout_rate=0.5, use_flash_attention=flash).eval()
        with torch.no_grad():
            one, other = layer(tokens), layer(tokens)
        differs[block.__name__, flash] = float((one - other).abs().max())
        print(
            f"{block.__name__}, evaluation mode, use_flash_attention={flash}: "
            f"two calls differ by {differs[block.__name__, flash]:.3g}"
        )
wrong = all((difference > 0.0) == flash for (_, flash), difference in differs.items())
print("weights are dropped in evaluation mode" if wrong else "the defect is gone")
sys.exit(0 if wrong else 1)
