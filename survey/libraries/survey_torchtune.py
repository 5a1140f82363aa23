"""torchtune: its attention, causal or not, with fewer heads of keys."""

from torch import nn
from torchtune.modules import MultiHeadAttention

REQUIREMENTS = ["torchtune==0.6.1", "torchao==0.17.0", "torchvision==0.28.0"]
CANDIDATES = {"causal": "identify", "grouped": "identify"}


def _made(kv_heads: int) -> nn.Module:
    wide, narrow = nn.Linear(16, 16), 4 * kv_heads
    return MultiHeadAttention(
        embed_dim=16,
        num_heads=4,
        num_kv_heads=kv_heads,
        head_dim=4,
        q_proj=wide,
        k_proj=nn.Linear(16, narrow),
        v_proj=nn.Linear(16, narrow),
        output_proj=nn.Linear(16, 16),
    )


def causal() -> nn.Module:
    """Causal as by default."""
    return _made(4)


def grouped() -> nn.Module:
    """Two heads of keys and values for four."""
    return _made(2)
