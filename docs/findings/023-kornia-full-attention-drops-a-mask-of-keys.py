# ruff: noqa: INP001, T201 (a script that prints)
# Runs in the environment of the survey for kornia.
"""kornia: LoFTR's FullAttention drops kv_mask unless q_mask is given, too.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import torch
from kornia.feature.loftr.loftr_module.linear_attention import FullAttention, LinearAttention

torch.manual_seed(0)
query, key, value = torch.randn(1, 5, 2, 4), torch.randn(1, 7, 2, 4), torch.randn(1, 7, 2, 4)
keys = torch.tensor([[True] * 4 + [False] * 3])
everybody = torch.ones(1, 5, dtype=torch.bool)
limit = 1e-4

wrong = True
for attention, obeys in ((FullAttention(), False), (LinearAttention(), True)):
    name = type(attention).__name__
    short = attention(query, key[:, :4], value[:, :4])
    whole = attention(query, key, value)
    both = float((attention(query, key, value, everybody, keys) - short).abs().max())
    alone = attention(query, key, value, None, keys)
    hidden, seen = float((alone - short).abs().max()), float((alone - whole).abs().max())
    print(f"{name}, kv_mask hides three keys, a q_mask of ones: {both:.2g} from them left out")
    print(f"{name}, the same without q_mask: {hidden:.2g} from them left out, {seen:.2g} from all")
    near, far = (hidden, seen) if obeys else (seen, hidden)
    wrong &= max(both, near) < limit < far
print("kv_mask alone hides nothing in FullAttention" if wrong else "the defect is gone")
sys.exit(0 if wrong else 1)
