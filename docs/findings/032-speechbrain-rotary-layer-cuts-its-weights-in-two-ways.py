# ruff: noqa: INP001, T201 (a script that prints)
# Runs in the environment of the survey for speechbrain.
"""speechbrain: whether query and key are equal decides which rows of the weights project them.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import torch

# Stands for torchaudio, whose wheel in the index needs CUDA; no attention uses it.
absent = ModuleType("torchaudio")
absent.__spec__ = ModuleSpec("torchaudio", None)
absent.__version__ = "2.9.0"
sys.modules["torchaudio"] = absent

from speechbrain.nnet.attention import RelPosEncXL, RelPosMHAXL, RoPEMHA  # noqa: E402

torch.manual_seed(0)
layer = RoPEMHA(embed_dim=12, num_heads=3).eval()
tokens = torch.randn(2, 5, 12)


def answers(query: torch.Tensor) -> torch.Tensor:
    """The layer's answers to some queries on all tokens."""
    with torch.no_grad():
        answer: torch.Tensor = layer(query, tokens, tokens, return_attn_weights=False)
    return answer


whole = answers(tokens)
# No query sees another: the first four are answered as they are among five.
first = answers(tokens[:, :4])
# The least change of the last query leaves the answers to the others as they are.
changed = tokens.clone()
changed[:, -1, 0] += 1e-6
nudged = answers(changed)[:, :4]
for what, other in (("without the fifth", first), ("beside a fifth off by 1e-6", nudged)):
    off = float((other - whole[:, :4]).abs().max())
    print(f"the first four queries {what}: off by {off:.3g}")

# The same least change of the layer with relative positions.
relative = RelPosMHAXL(embed_dim=12, num_heads=3).eval()
positions = RelPosEncXL(12).make_pe(5)
with torch.no_grad():
    both = [
        relative(query, tokens, tokens, positions, return_attn_weights=False)[:, :4]
        for query in (tokens, changed)
    ]
off = float((both[1] - both[0]).abs().max())
print(f"RelPosMHAXL, the first four queries beside a fifth off by 1e-6: off by {off:.3g}")
rotary_wrong = torch.allclose(first, nudged, atol=1e-5) and not torch.allclose(
    first, whole[:, :4], atol=1e-2
)
wrong = rotary_wrong and not torch.allclose(*both, atol=1e-2)
print("equal query and key are projected by other weights" if wrong else "the defect is gone")
sys.exit(0 if wrong else 1)
