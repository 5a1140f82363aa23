"""``conformance export-check``: exports a module and checks its graphs."""
