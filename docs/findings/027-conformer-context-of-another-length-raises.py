# ruff: noqa: INP001, T201 (a script that prints)
# Runs in the environment of the survey for conformer.
"""conformer: attention to a context of another length raises.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import torch
from conformer.conformer import Attention

torch.manual_seed(0)
layer = Attention(12, heads=3, dim_head=4).eval()
said = {}
for length in (7, 1, 5, 9):
    try:
        answer = layer(torch.randn(2, 7, 12), context=torch.randn(2, length, 12))
        said[length] = f"answers {list(answer.shape)}"
    except RuntimeError as error:
        said[length] = f"raises {error}"
    print(f"7 tokens, a context of {length}: {said[length]}")
wrong = all(said[length].startswith("answers") for length in (7, 1)) and all(
    f"The size of tensor a ({length}) must match the size of tensor b (7)" in said[length]
    for length in (5, 9)
)
print("a context must be as long as the tokens" if wrong else "the defect is gone")
sys.exit(0 if wrong else 1)
