"""Calls of a candidate: its arguments, gradients, devices and memory, and what it may not touch.

It may import ``problems`` and what lies below it.
"""
