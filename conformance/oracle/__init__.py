"""The answers that are right, their bounds, and the comparison with what a candidate answers."""
