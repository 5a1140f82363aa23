"""Tools built on sessions: identify, export-check, teeth, vectors, replay, bundles, documents.

The package may import ``views`` and all packages below ``views``.
"""
