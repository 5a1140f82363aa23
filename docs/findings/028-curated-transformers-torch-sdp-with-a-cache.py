# ruff: noqa: INP001, T201 (a script that prints)
# Runs in the environment of the survey for curated_transformers.
"""curated-transformers: a step with a cache has too many positions by torch's function.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import torch
from curated_transformers.layers import (
    AttentionHeads,
    AttentionMask,
    QkvMode,
    ScaledDotProductAttention,
    SelfAttention,
    enable_torch_sdp,
)
from curated_transformers.layers.attention import QkvSplitGroupedByHead
from curated_transformers.models.llama import LlamaCausalLM, LlamaConfig

torch.manual_seed(0)
layer = SelfAttention(
    attention_heads=AttentionHeads.uniform(3, QkvSplitGroupedByHead()),
    attention_scorer=ScaledDotProductAttention(dropout_prob=0.0, linear_biases=None),
    hidden_width=12,
    qkv_mode=QkvMode.SEPARATE,
    use_bias=True,
).eval()
tokens = torch.randn(2, 5, 12)
mask = AttentionMask(torch.ones(2, 5, dtype=torch.bool))
shapes = {}
for by_torch in (False, True):
    with enable_torch_sdp(by_torch), torch.no_grad():
        first = AttentionMask(mask.bool_mask[..., :4])
        _, cache = layer(tokens[:, :4], first, use_causal_mask=True, store_cache=True)
        step, cache = layer(
            tokens[:, 4:], mask, use_causal_mask=True, cache=cache, store_cache=True
        )
    shapes[by_torch] = list(step.shape)
    print(f"torch's function {by_torch}: one token after four is answered {shapes[by_torch]}")

config = LlamaConfig(
    hidden_width=24,
    intermediate_width=32,
    n_hidden_layers=2,
    n_pieces=50,
    n_query_heads=3,
    n_key_value_heads=3,
    rotary_embedding_fraction=1.0,
    dtype=torch.float32,
)
model = LlamaCausalLM(config).eval()
pieces = torch.arange(10).view(2, 5)
said = {}
for by_torch in (False, True):
    with enable_torch_sdp(by_torch), torch.no_grad():
        begun = model(pieces[:, :4], first, store_cache=True)
        try:
            said[by_torch] = str(list(model(pieces[:, 4:], mask, cache=begun.cache).logits.shape))
        except RuntimeError as error:
            said[by_torch] = f"raises {error}"
    print(f"torch's function {by_torch}: a model of two layers, a step: {said[by_torch]}")
layers_wrong = shapes == {False: [2, 1, 12], True: [2, 5, 12]}
models_wrong = said[False] == "[2, 1, 50]" and "(5) must match" in said[True]
wrong = layers_wrong and models_wrong
print("a token has five answers, a model raises" if wrong else "the defect is gone")
sys.exit(0 if wrong else 1)
