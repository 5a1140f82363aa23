"""The ``check`` command's work: select, run and judge clauses, and build the record.

May import ``running`` and the layers below it.
"""
