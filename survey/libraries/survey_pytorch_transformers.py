"""pytorch-transformers: the ancestor of transformers, of 2019."""

import torch
from pytorch_transformers import BertConfig, BertModel, GPT2Config, GPT2Model
from pytorch_transformers.modeling_bert import BertSelfAttention
from torch import nn

REQUIREMENTS = ["pytorch-transformers==1.2.0"]
CANDIDATES = {
    "layer": "identify",
    "bert": "check",
    "gpt2": "check",
}


_SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
}


def layer() -> nn.Module:
    """The attention of its BERT."""
    return BertSelfAttention(BertConfig(50, **_SIZES))


def bert() -> nn.Module:
    """A whole encoder."""
    torch.manual_seed(0)
    return BertModel(BertConfig(50, **_SIZES)).eval()


def gpt2() -> nn.Module:
    """A whole decoder."""
    torch.manual_seed(0)
    return GPT2Model(
        GPT2Config(50, n_positions=64, n_ctx=64, n_embd=24, n_layer=2, n_head=3)
    ).eval()
