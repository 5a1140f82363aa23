"""Plain data for all other packages: results, the record, sizes, limits, dtypes, texts.

The package imports ``errors`` and ``_golden`` alone of this distribution.
"""
