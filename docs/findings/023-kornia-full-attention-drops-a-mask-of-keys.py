# ruff: noqa: INP001, T201 (a script that prints)
# Runs in the environment of the survey for kornia.
"""kornia: LoFTR's FullAttention drops kv_mask unless q_mask is given, too.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import torch
from kornia.feature.loftr.loftr_module.linear_attention import FullAttention

torch.manual_seed(0)
query, key, value = torch.randn(1, 5, 2, 4), torch.randn(1, 7, 2, 4), torch.randn(1, 7, 2, 4)
keys = torch.tensor([[True] * 4 + [False] * 3])
everybody = torch.ones(1, 5, dtype=torch.bool)

attention = FullAttention()
short = attention(query, key[:, :4], value[:, :4])
apart = {
    "with a q_mask of ones": float(
        (attention(query, key, value, everybody, keys) - short).abs().max()
    ),
    "without q_mask": float((attention(query, key, value, None, keys) - short).abs().max()),
}
for name, difference in apart.items():
    print(f"kv_mask that hides the last three keys, {name}: {difference:.2g} from those left out")
limit = 1e-4
wrong = apart["with a q_mask of ones"] < limit < apart["without q_mask"]
print("kv_mask alone hides nothing" if wrong else "the defect is gone")
sys.exit(0 if wrong else 1)
