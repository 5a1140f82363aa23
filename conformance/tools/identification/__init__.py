"""What something undeclared computes, found by calling it: ``conformance identify``."""
