"""Plain data and words that everything else is said in: results, sizes, limits, expected failures."""
