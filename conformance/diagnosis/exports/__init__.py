"""Which step of an export changes the answers."""
