"""What a candidate promises, checked when it is declared."""
