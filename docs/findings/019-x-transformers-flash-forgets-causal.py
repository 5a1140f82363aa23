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
built = Attention(dim=12, heads=3, dim_head=4, flash=True, causal=True).eval()
built.load_state_dict(plain.state_dict())
tokens = torch.randn(1, 5, 12)


def answer(layer: torch.nn.Module, **options: bool) -> torch.Tensor:
    """What a layer answers, without what else it returns."""
    one = layer(tokens, **options)
    return (one[0] if isinstance(one, tuple) else one).detach()


apart = {}
for causal in (False, True):
    first, second = answer(plain, causal=causal), answer(fused, causal=causal)
    apart[causal] = float((first - second).abs().max())
    print(f"causal={causal}: the two are {apart[causal]:.2g} apart")
forgotten = float((answer(fused, causal=True) - answer(fused, causal=False)).abs().max())
print(f"flash=True: causal=True moves the answer by {forgotten:.2g}")
near = float((answer(built) - answer(plain, causal=True)).abs().max())
print(f"flash=True, built causal: {near:.2g} from causal=True without flash")
limit = 1e-4
wrong = max(apart[False], forgotten, near) < limit < apart[True]
print("flash=True forgets causal" if wrong else "the defect is gone")
sys.exit(0 if wrong else 1)
