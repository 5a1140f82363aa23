"""The smallest problem on which a candidate still fails, and its counterexample.

Imports nothing of ``running``, but may import ``clauses`` and the layers below it.
"""
