"""What the inputs and outputs of a graph are: by declaration, else by behaviour."""

from .reader import read_roles, read_unasked

__all__ = ["read_roles", "read_unasked"]
