"""Attentions that several ranks compute together; ``conformance check candidates/ranks``."""

__conformance__ = [
    "all_gather",
    "ring",
    "ulysses",
    "split_keys",
    "tensor_parallel",
    "torch_parallel",
]
