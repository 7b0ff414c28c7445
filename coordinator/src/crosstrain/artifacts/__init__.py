"""Storage of tensors and data by digest, and their way between processes."""

from .store import CHUNK, ArtifactStore, not_found
from .transfer import fetch, missing_there, send, write_requests

__all__ = ["CHUNK", "ArtifactStore", "fetch", "missing_there", "not_found", "send", "write_requests"]
