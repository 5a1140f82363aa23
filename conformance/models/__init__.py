"""Whole models: every attention of a graph or a module, each a core that is judged alone.

May import ``adapters`` and the layers below it.
"""
