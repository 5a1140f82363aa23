"""Attentions with one mistake each, to see that the clauses catch it.

``MISTAKES`` is the catalogue. These candidates are not checked with the others: name a file, or one
of its classes, to check them. Every file here is about one concept; every class says its mistake in
one sentence.
"""

from __future__ import annotations

from typing import Final

from conformance import Mistake

from . import (  # importing a file declares its mistakes
    accepted,
    asked_weights,
    bias,
    caches,
    causal,
    cheats,
    clipped,
    confused,
    contiguity,
    crashes,
    devices,
    dropout,
    dtype_and_shape,
    empty_rows,
    extremes,
    fast_paths,
    forms,
    gradients,
    graphs,
    groups,
    half_precision,
    heads,
    layers,
    lengths,
    linear_biases,
    long_sums,
    masking,
    mixed,
    modules,
    normalisation,
    options,
    order,
    positions,
    precision,
    remembered,
    rotary,
    scaling,
    sinks,
    softcaps,
    softmax,
    splits,
    state,
    tampering,
    tiles,
    weight_gradients,
    windows,
)
from ._kit import CORRECT, DECLARED

MISTAKES: Final[tuple[Mistake, ...]] = tuple(sorted(DECLARED, key=lambda mistake: mistake.name))

__conformance__: Final[tuple[str, ...]] = ()

__all__ = [
    "CORRECT",
    "MISTAKES",
    "Mistake",
    "accepted",
    "asked_weights",
    "bias",
    "caches",
    "causal",
    "cheats",
    "clipped",
    "confused",
    "contiguity",
    "crashes",
    "devices",
    "dropout",
    "dtype_and_shape",
    "empty_rows",
    "extremes",
    "fast_paths",
    "forms",
    "gradients",
    "graphs",
    "groups",
    "half_precision",
    "heads",
    "layers",
    "lengths",
    "linear_biases",
    "long_sums",
    "masking",
    "mixed",
    "modules",
    "normalisation",
    "options",
    "order",
    "positions",
    "precision",
    "remembered",
    "rotary",
    "scaling",
    "sinks",
    "softcaps",
    "softmax",
    "splits",
    "state",
    "tampering",
    "tiles",
    "weight_gradients",
    "windows",
]
