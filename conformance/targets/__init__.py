"""From a target string to candidates, and to the place in their source."""
