"""Suites of clauses for pytest.

Every pytest run imports this package: nothing heavy is imported when it loads. The package may
import ``session``, ``views`` and all packages below them.
"""

from typing import Final

# An attribute of tests: the options of their suite. A property of pytest's reports: a status.
MARKER: Final = "__conformance_suite__"
STATUS: Final = "conformance_status"
