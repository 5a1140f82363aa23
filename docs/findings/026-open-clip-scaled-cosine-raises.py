# ruff: noqa: INP001, T201 (a script that prints)
# Runs in the environment of the survey for open_clip.
"""open_clip: Attention with scaled_cosine=True raises in every call.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import cpu_torchvision  # noqa: F401 (lets open_clip be imported beside torch's build for CPUs)
import torch
from open_clip.transformer import Attention

torch.manual_seed(0)
said = {}
for scaled_cosine in (False, True):
    layer = Attention(12, num_heads=3, scaled_cosine=scaled_cosine).eval()
    try:
        said[scaled_cosine] = f"answers {list(layer(torch.randn(2, 7, 12)).shape)}"
    except RuntimeError as error:
        said[scaled_cosine] = f"raises {error}"
    print(f"scaled_cosine={scaled_cosine}: {said[scaled_cosine]}")
wrong = said[False].startswith("answers") and said[True].startswith("raises")
print("scaled_cosine=True has no answer" if wrong else "the defect is gone")
sys.exit(0 if wrong else 1)
