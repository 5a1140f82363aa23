"""Candidates run in processes that may hang or die."""
