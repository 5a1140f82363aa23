"""From a target string to its candidates, and to the place of a candidate in its source.

The package may import ``adapters`` and all packages below ``adapters``.
"""
