"""``conformance bundle``: a failure as a folder to read without this project."""
