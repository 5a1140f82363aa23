"""Formats of a record, each a pure function of it.

Terminal, HTML, Markdown, SARIF, JUnit, CTRF, a badge and GitHub's annotations; of two records the
difference, of several a comparison.

It may import ``base`` alone.
"""
