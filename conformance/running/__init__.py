"""Running the clauses of one candidate, and the processes that this happens in."""
