"""``conformance identify``: what an undeclared implementation computes, by calling it."""
