"""Whole models: every attention of a graph or module, as a core judged alone.

May import ``adapters`` and the layers below it.
"""
