"""Crosstrain's coordinator: job store, scheduling, comparison, command line and client."""

__version__ = "0.1.0"
