"""Remembers what a source was imported as, so that the next job need not read it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .cache import DataCache
from .errors import DataError
from .info import DatasetInfo, ImportOptions
from .source import Source

# Raised whenever an importer would read the same bytes differently.
IMPORTER_VERSION = 1


@dataclass(frozen=True)
class Entry:
    """One line of the index: the source as it was, and its dataset."""

    identity: str
    content: str
    info: DatasetInfo


def index_key(source: Source, options: ImportOptions) -> str:
    """Names the index entry of one source read with one set of options."""
    parts = [IMPORTER_VERSION, str(source.root.resolve()), source.name, options.to_json()]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def look_up(cache: DataCache, key: str, source: Source) -> DatasetInfo | None:
    """The stored dataset of ``source``, or None when it must be imported.

    Files with the same identity (device, inode, size, times) are taken as unchanged. When only the
    identity differs, as after a copy or ``touch``, the content is read and its digest decides.
    """
    path = _path(cache, key)
    entry = _load(path)
    if entry is None or not _arrays_present(cache, entry.info):
        return None
    identity = source.identity()
    if identity != entry.identity:
        if source.content_digest() != entry.content:
            return None
        if source.identity() != identity:
            return None
        store(cache, key, Entry(identity, entry.content, entry.info))
    return entry.info


def store(cache: DataCache, key: str, entry: Entry) -> None:
    """Write or replace one entry."""
    record = {"identity": entry.identity, "content": entry.content, "info": entry.info.to_json()}
    cache.write_text(_path(cache, key), json.dumps(record, indent=1, sort_keys=True) + "\n")


def _path(cache: DataCache, key: str) -> Path:
    return cache.index_dir / f"{key}.json"


def _load(path: Path) -> Entry | None:
    """An unreadable or outdated entry counts as none: the import makes a new one."""
    try:
        record: Any = json.loads(path.read_text(encoding="utf-8"))
        return Entry(str(record["identity"]), str(record["content"]), DatasetInfo.from_json(record["info"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, DataError):
        return None


def _arrays_present(cache: DataCache, info: DatasetInfo) -> bool:
    try:
        pixels = cache.open(info.pixels_digest)
        labels = cache.open(info.labels_digest)
        rows = cache.open(info.rows_digest)
    except DataError:
        return False
    return (
        pixels.shape == (info.samples, *info.input_shape)
        and labels.shape == (info.samples,)
        and rows.shape[:1] == (info.samples,)
    )
