"""Formats of a record, each a pure function of it: terminal, HTML, Markdown, SARIF, JUnit, CTRF.

It may import ``base`` alone.
"""
