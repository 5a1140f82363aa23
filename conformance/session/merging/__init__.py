"""Makes the record of one run of the records of its shards, without running anything again."""

from __future__ import annotations

from .merged import merge_shards
from .shards import read_shards

__all__ = ["merge_shards", "read_shards"]
