"""The smallest problem on which a candidate still fails, and its counterexample.

It may import ``clauses`` and what lies below it.
"""
