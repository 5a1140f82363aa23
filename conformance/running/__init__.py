"""Runs the clauses of a candidate, in this process or in workers that may hang or crash.

May import ``diagnosis`` and the layers below it.
"""
