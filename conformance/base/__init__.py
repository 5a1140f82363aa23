"""Plain data that everything else is said in: results, sizes, limits, expected failures."""
