"""What ``check`` does: select, run, hold against expected failures, put the record together."""
