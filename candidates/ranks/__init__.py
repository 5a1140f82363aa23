"""Attentions that several ranks compute together; ``conformance check candidates/ranks``.

``torch_parallel`` is checked by itself: torch's imports make each start of its ranks slow.
"""

__conformance__ = [
    "all_gather",
    "ring",
    "ulysses",
    "split_keys",
    "tensor_parallel",
]
