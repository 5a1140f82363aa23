"""Attentions that several ranks compute together; ``conformance check candidates/ranks``.

``torch_parallel`` is checked by itself: ranks are started anew after each call that is refused,
which takes it some ten minutes.
"""

__conformance__ = [
    "all_gather",
    "ring",
    "ulysses",
    "split_keys",
    "tensor_parallel",
]
