"""What a candidate promises, checked when it is declared: decorators, declaration, operators.

It may import ``base`` and ``graphs``.
"""
