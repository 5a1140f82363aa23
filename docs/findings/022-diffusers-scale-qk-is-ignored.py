# ruff: noqa: INP001, T201 (a script that prints)
# Runs in the environment of the survey for diffusers.
"""diffusers: the default processor ignores scale_qk=False; the one without torch's function obeys.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import torch
from diffusers.models.attention_processor import Attention, AttnProcessor, AttnProcessor2_0

torch.manual_seed(0)
tokens = torch.randn(2, 7, 12)


@torch.no_grad()
def apart(*, scale_qk: bool) -> float:
    """How far the two processors of one layer are apart."""
    layer = Attention(query_dim=12, heads=3, dim_head=4, scale_qk=scale_qk).eval()
    answers = []
    for processor in (AttnProcessor(), AttnProcessor2_0()):
        layer.set_processor(processor)
        answers.append(layer(tokens))
    return float((answers[0] - answers[1]).abs().max())


shown = {scale_qk: apart(scale_qk=scale_qk) for scale_qk in (True, False)}
for scale_qk, difference in shown.items():
    print(f"scale_qk={scale_qk}: the processors are {difference:.2g} apart")
limit = 1e-4
wrong = shown[True] < limit < shown[False]
print("the default processor scales all the same" if wrong else "the defect is gone")
sys.exit(0 if wrong else 1)
