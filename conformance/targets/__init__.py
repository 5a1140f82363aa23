"""From a target string to its candidates, and to the place of a candidate in its source.

It may import ``adapters`` and what lies below it.
"""
