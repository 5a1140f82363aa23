"""A counterexample as a script of its own."""
