"""What ``check`` does: select clauses, run them, judge them by expected failures, build the record.

It may import ``running`` and what lies below it.
"""
