"""fairseq2: its functions of heads and its layer."""

from fairseq2.models.transformer import NaiveSDPA, TorchSDPA
from torch import nn

REQUIREMENTS = ["fairseq2==0.8.1"]
CANDIDATES = {
    "written_out": "identify",
    "by_torch": "identify",
}


def written_out() -> nn.Module:
    """In its own steps."""
    return NaiveSDPA()


def by_torch() -> nn.Module:
    """By torch's function."""
    return TorchSDPA()
