"""The parts of ``benchmarks/tolerance.py``: problems, implementations, mistakes, rules, tables."""
