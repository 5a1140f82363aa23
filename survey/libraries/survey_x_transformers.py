"""x-transformers: its attention with most of its options, and whole models."""

import torch
from torch import nn
from x_transformers import Decoder, Encoder, TransformerWrapper
from x_transformers.x_transformers import Attention

REQUIREMENTS = ["x-transformers==2.31.10"]
CANDIDATES = {
    "plain": "identify",
    "flash": "identify",
    "softcapped": "identify",
    "encoder": "check",
    "decoder_rotary": "check",
    "decoder_alibi": "check",
    "decoder_flash": "check",
}
DECIDED = [
    {
        "clause": [
            "mask.causal",
            "mask.causal-alignment",
            "mask.causal-and-mask",
            "mask.causal-combined",
            "mask.causal-first-key",
            "mask.empty-row",
            "mask.empty-row-options",
            "numerics.any-length",
            "numerics.options",
            "gradients.causal",
            "gradients.empty-row-finite",
            "gradients.golden",
            "gradients.options",
        ],
        "candidates": "flash",
        "kind": "value",
        "decided": "defect",
        "reason": "the causal of a call is lost on the way to torch's function",
        "finding": "019-x-transformers-flash-forgets-causal",
    },
]


def plain() -> nn.Module:
    """In its own steps."""
    return Attention(dim=12, heads=3, dim_head=4)


def flash() -> nn.Module:
    """By torch's function."""
    return Attention(dim=12, heads=3, dim_head=4, flash=True)


def softcapped() -> nn.Module:
    """With capped logits."""
    return Attention(dim=12, heads=3, dim_head=4, softclamp_logits=True, logit_softclamp_value=5.0)


def _model(layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return TransformerWrapper(num_tokens=50, max_seq_len=64, attn_layers=layers).eval()


def encoder() -> nn.Module:
    """An encoder of tokens."""
    return _model(Encoder(dim=24, depth=2, heads=3, attn_dim_head=8))


def decoder_rotary() -> nn.Module:
    """A decoder with rotary positions."""
    return _model(Decoder(dim=24, depth=2, heads=3, attn_dim_head=8, rotary_pos_emb=True))


def decoder_alibi() -> nn.Module:
    """A decoder with linear biases."""
    return _model(Decoder(dim=24, depth=2, heads=3, attn_dim_head=8, alibi_pos_bias=True))


def decoder_flash() -> nn.Module:
    """A decoder by torch's function."""
    return _model(Decoder(dim=24, depth=2, heads=3, attn_dim_head=8, attn_flash=True))
