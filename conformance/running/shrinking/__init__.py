"""The smallest problem on which a candidate still fails, and its counterexample.

It imports nothing of ``running``, but may import ``clauses`` and what lies below it.
"""
