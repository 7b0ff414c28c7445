"""The coordinator as a server. ``python -m crosstrain.api --help`` tells how to run it."""

from .server import CoordinatorServer
from .settings import Settings

__all__ = ["CoordinatorServer", "Settings"]
