"""Tiny whole models of plain torch with random weights: correct ones, and ones with a mistake.

Tests export them with both of torch's exporters; nothing is downloaded. ``MODELS`` holds the
correct ones by name, ``BROKEN`` pairs of a model and the attentions in it that are wrong.
"""

from __future__ import annotations

from .catalogue import BROKEN, MODELS

__all__ = ["BROKEN", "MODELS"]
