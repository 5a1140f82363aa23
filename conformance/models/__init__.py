"""Whole models: every attention in a graph, each cut out as a core that is judged alone.

It may import ``adapters`` and what lies below it.
"""
