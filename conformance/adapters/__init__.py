"""Candidates made of a torch module, a function of arrays, a compiled function or a graph.

It may import ``tolerance`` and what lies below it.
"""
