"""Calls of a candidate: arguments, gradients, devices, memory, and protection of the judge.

May import ``problems`` and the layers below it.
"""
