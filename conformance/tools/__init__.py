"""What is built on sessions: identify, export-check, teeth, vectors, replay, bundles, documents."""
