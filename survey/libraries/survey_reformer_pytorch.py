"""reformer-pytorch: shared queries and keys, whole and by hashing."""

from reformer_pytorch.reformer_pytorch import FullQKAttention, LSHSelfAttention
from torch import nn

REQUIREMENTS = ["reformer-pytorch==1.4.4"]
CANDIDATES = {
    "full": "identify",
    "hashed": "identify",
}


def full() -> nn.Module:
    """All keys, but a query's own place last."""
    return FullQKAttention()


def hashed() -> nn.Module:
    """By hashing, which is random."""
    return LSHSelfAttention(12, heads=3, bucket_size=4, n_hashes=2)
