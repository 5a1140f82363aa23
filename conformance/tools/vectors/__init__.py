"""Test vectors for people in other languages: ``conformance vectors``."""
