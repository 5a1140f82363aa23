"""What is read of a candidate: weights, gradients, and what is returned as weights."""
