"""The smallest problem on which a candidate still fails, and the counterexample made of it."""
