"""Plain data that every other package uses: results, the record, sizes, limits, dtypes, texts.

It imports nothing of ours but ``errors`` and ``_golden``.
"""
