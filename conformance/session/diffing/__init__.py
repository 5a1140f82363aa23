"""What changed from one record to another: data for views, and whether anything got worse."""

from __future__ import annotations

from .records import difference

__all__ = ["difference"]
