"""Problems: what is asked of a candidate, drawn, picked by hand or combined, and its tensors."""
