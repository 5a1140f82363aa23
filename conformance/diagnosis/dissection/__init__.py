"""Reads weights, gradients and returned weights of a candidate."""
