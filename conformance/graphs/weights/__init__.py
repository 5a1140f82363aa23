"""A graph's projections: found by value, whatever the exporter did to names and shapes."""

from .finding import find_weights, read_state_dict

__all__ = ["find_weights", "read_state_dict"]
