"""Teeth: every mistake of the catalogue against every clause, and every correct candidate, too."""
