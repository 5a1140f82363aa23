"""The golden answers, what formats can represent of them, and the comparison with an answer.

It may import ``calls`` and what lies below it.
"""
