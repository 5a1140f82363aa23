"""Tools built on sessions: identify, export-check, teeth, vectors, replay, bundles, documents.

It may import ``session`` and what lies below it, but no view.
"""
