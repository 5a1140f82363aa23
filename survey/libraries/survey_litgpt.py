"""litgpt: a whole decoder, with fewer heads of keys, a window or a cap."""

import torch
from litgpt.config import Config
from litgpt.model import GPT
from torch import nn

REQUIREMENTS = ["litgpt==0.5.13"]
CANDIDATES = {
    "pythia": "check",
    "grouped": "check",
    "windowed": "check",
    "capped": "check",
}


def _made(**more: object) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_embd": 32, "n_head": 4, "block_size": 64, "padded_vocab_size": 50}
    return GPT(Config(**sizes, **more)).eval()


def pythia() -> nn.Module:
    """As many heads of keys as of queries."""
    return _made()


def grouped() -> nn.Module:
    """Two heads of keys."""
    return _made(n_query_groups=2)


def windowed() -> nn.Module:
    """Every layer within a window."""
    return _made(sliding_window_size=4, sliding_window_indices=[1, 1])


def capped() -> nn.Module:
    """With capped logits."""
    return _made(attention_logit_softcapping=5.0)
