"""Tools built on sessions: identify, export-check, teeth, vectors, replay, bundles, documents.

It may import ``views`` and what lies below them.
"""
