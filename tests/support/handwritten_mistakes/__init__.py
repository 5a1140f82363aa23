"""Broken attentions written by hand, to see what their failures are called."""
