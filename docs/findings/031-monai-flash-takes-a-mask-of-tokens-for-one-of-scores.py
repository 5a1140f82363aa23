# ruff: noqa: INP001, T201 (a script that prints)
# Runs in the environment of the survey for monai.
"""MONAI: by torch's function a mask of tokens is taken for one of queries and keys.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import torch
from monai.networks.blocks.selfattention import SABlock

torch.manual_seed(0)
layers = {flash: SABlock(12, 3, use_flash_attention=flash).eval() for flash in (False, True)}
layers[True].load_state_dict(layers[False].state_dict())


def said(tokens: torch.Tensor, mask: torch.Tensor) -> str:
    """How torch's function differs from the layer's own steps."""
    with torch.no_grad():
        own = layers[False](tokens, mask)
        try:
            flash = layers[True](tokens, mask)
        except RuntimeError as error:
            return f"raises {str(error).splitlines()[0]}"
    return "right" if torch.allclose(flash, own, atol=1e-5) else "wrong"


answers = {}
for items in (5, 2):
    mask = torch.ones(items, 5, dtype=torch.bool)
    mask[1, -1] = False  # the last token of the second item is padding
    answers[items] = said(torch.randn(items, 5, 12), mask)
    print(f"{items} items of 5 tokens, by torch's function: {answers[items]}")
wrong = answers[5] == "wrong" and "must match the size of tensor" in answers[2]
print("a mask of tokens hides other keys, or raises" if wrong else "the defect is gone")
sys.exit(0 if wrong else 1)
