"""Roles of a graph's inputs and outputs: by declaration, else by behaviour."""

from .reader import read_roles, read_without_calls

__all__ = ["read_roles", "read_without_calls"]
