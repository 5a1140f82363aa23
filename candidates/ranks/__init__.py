"""Attentions that several ranks compute together; ``conformance check candidates/ranks``."""

__conformance__ = ["all_gather"]
