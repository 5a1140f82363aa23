"""Plain data that every other package uses: results, the record, sizes, limits, dtypes, texts.

Of this distribution it imports ``errors`` and ``_golden`` only.
"""
