"""Suites of clauses for pytest."""
