"""Views of one report: each a pure function of the record."""
