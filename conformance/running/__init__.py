"""Runs the clauses of a candidate, in this process or in workers that may hang or crash.

It may import ``diagnosis`` and what lies below it.
"""
