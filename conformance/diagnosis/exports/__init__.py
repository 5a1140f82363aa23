"""Finds the step of an export that changes the answers."""
