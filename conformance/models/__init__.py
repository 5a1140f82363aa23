"""Whole models: every attention of a graph or a module, each a core that is judged alone.

It may import ``adapters`` and what lies below it.
"""
