"""Suites of clauses for pytest.

Every pytest run imports this package, so it imports nothing heavy when loaded. It may import
``session``, ``views`` and what lies below them.
"""

from typing import Final

# An attribute of tests: the options of their suite. A property of pytest's reports: a status.
MARKER: Final = "__conformance_suite__"
STATUS: Final = "conformance_status"
