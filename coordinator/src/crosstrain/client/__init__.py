"""The Python client of the coordinator."""

from .client import Client

__all__ = ["Client"]
