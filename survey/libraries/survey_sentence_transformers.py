"""sentence-transformers: a whole encoder by its own module."""

import torch
import transformers
from torch import nn

REQUIREMENTS = ["sentence-transformers==6.2.0", "transformers==5.23.0"]
CANDIDATES = {
    "bert": "check",
}


def bert() -> nn.Module:
    """The transformer inside, as it is loaded."""
    torch.manual_seed(0)
    return transformers.BertModel(
        transformers.BertConfig(
            hidden_size=24,
            num_hidden_layers=2,
            num_attention_heads=3,
            intermediate_size=32,
            vocab_size=50,
        )
    ).eval()
