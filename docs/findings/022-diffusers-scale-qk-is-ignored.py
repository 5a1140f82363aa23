# ruff: noqa: INP001, T201 (a script that prints)
# Runs in the environment of the survey for diffusers.
"""diffusers: AttnProcessor2_0, set on a layer with scale_qk=False, ignores it.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import torch
from diffusers.models.attention_processor import Attention, AttnProcessor, AttnProcessor2_0

torch.manual_seed(0)
tokens = torch.randn(2, 7, 12)


@torch.no_grad()
def apart(*, scale_qk: bool) -> tuple[str, float, float]:
    """The default processor, and how far it and AttnProcessor2_0 are from AttnProcessor."""
    layer = Attention(query_dim=12, heads=3, dim_head=4, scale_qk=scale_qk).eval()
    name = type(layer.processor).__name__
    default = layer(tokens)
    layer.set_processor(AttnProcessor())
    plain = layer(tokens)
    layer.set_processor(AttnProcessor2_0())
    by_torch = layer(tokens)
    return name, float((default - plain).abs().max()), float((by_torch - plain).abs().max())


@torch.no_grad()
def scaled_all_the_same() -> float:
    """How far AttnProcessor2_0 moves when the layer has scale_qk=True instead."""
    layers = [
        Attention(
            query_dim=12, heads=3, dim_head=4, scale_qk=scale_qk, processor=AttnProcessor2_0()
        )
        for scale_qk in (True, False)
    ]
    layers[1].load_state_dict(layers[0].state_dict())
    first, second = (layer.eval()(tokens) for layer in layers)
    return float((first - second).abs().max())


shown = {scale_qk: apart(scale_qk=scale_qk) for scale_qk in (True, False)}
for scale_qk, (name, default, by_torch) in shown.items():
    print(f"scale_qk={scale_qk}: the default is {name}, {default:.2g} from AttnProcessor")
    print(f"scale_qk={scale_qk}: AttnProcessor2_0, set, is {by_torch:.2g} from AttnProcessor")
moved = scaled_all_the_same()
print(f"AttnProcessor2_0, given to the constructor, moves by {moved:.2g} with scale_qk")
limit = 1e-4
wrong = (
    [name for name, _, _ in shown.values()] == ["AttnProcessor2_0", "AttnProcessor"]
    and max(default for _, default, _ in shown.values()) < limit
    and max(shown[True][2], moved) < limit < shown[False][2]
)
print("AttnProcessor2_0 scales all the same" if wrong else "the defect is gone")
sys.exit(0 if wrong else 1)
