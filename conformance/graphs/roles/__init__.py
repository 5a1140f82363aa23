"""What the inputs and outputs of a graph are: by declaration, else by behaviour."""

from .reader import read_roles, read_without_calls

__all__ = ["read_roles", "read_without_calls"]
