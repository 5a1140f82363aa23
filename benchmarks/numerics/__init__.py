"""What ``benchmarks/tolerance.py`` is made of: problems, implementations, mistakes, rules, tables."""
