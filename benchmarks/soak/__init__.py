"""The soak: correct candidates under many seeds, for hours if need be."""
