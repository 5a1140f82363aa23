"""The command line: a file a command, which reads options, starts the work and prints.

It may import every other package.
"""
