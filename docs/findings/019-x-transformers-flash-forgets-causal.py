# ruff: noqa: INP001, T201 (a script that prints)
# Runs in the environment of the survey for x_transformers.
"""x-transformers: with flash=True the causal of a call is forgotten; without, it is obeyed.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import torch
from x_transformers.x_transformers import Attention

torch.manual_seed(0)
plain = Attention(dim=12, heads=3, dim_head=4).eval()
fused = Attention(dim=12, heads=3, dim_head=4, flash=True).eval()
fused.load_state_dict(plain.state_dict())
tokens = torch.randn(1, 5, 12)

apart = {}
for causal in (False, True):
    answers = [layer(tokens, causal=causal) for layer in (plain, fused)]
    first, second = (one[0] if isinstance(one, tuple) else one for one in answers)
    apart[causal] = float((first - second).detach().abs().max())
    print(f"causal={causal}: the two are {apart[causal]:.2g} apart")
limit = 1e-4
wrong = apart[False] < limit < apart[True]
print("flash=True forgets causal" if wrong else "the defect is gone")
sys.exit(0 if wrong else 1)
