"""The golden answers, their limits of representation, and the comparison with an answer.

The package may import ``calls`` and all packages below ``calls``.
"""
