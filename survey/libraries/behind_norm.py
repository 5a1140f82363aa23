"""Takes out the norm of tokens that a layer begins with: it is judged behind that."""

from torch import nn


def behind_norm(layer: nn.Module) -> nn.Module:
    """The layer with its ``norm`` replaced by nothing."""
    layer.norm = nn.Identity()
    return layer
