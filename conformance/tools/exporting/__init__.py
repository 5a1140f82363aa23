"""From a module to its graphs: which step of an export is to blame, and exporting to check."""
