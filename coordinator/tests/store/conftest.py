from __future__ import annotations

from doubles.databases import postgres, store, url

__all__ = ["postgres", "store", "url"]
