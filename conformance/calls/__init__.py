"""Calling a candidate: its arguments, gradients, devices, memory and what it may not touch."""
