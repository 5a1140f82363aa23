"""What the user says of a graph: the sidecar file and ``--declaration``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Told:
    """A declaration of a graph; what it leaves out is found by behaviour.

    inputs, outputs
        By the graph's own name: ``{"role": …, "axes": …}`` as in :class:`Role`.
    promises
        Keywords of :func:`conformance.layer`: ``empty_rows``, ``causal``, ``semantics`` …
    num_heads, num_kv_heads
        Where the graph does not show them.
    precision
        "" for that of its dtype, or ``int8-dynamic``.
    where
        The file that says so, for messages.
    """

    inputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    outputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    promises: Mapping[str, Any] = field(default_factory=dict)
    num_heads: int | None = None
    num_kv_heads: int | None = None
    name: str | None = None
    precision: str = ""
    where: str = ""
