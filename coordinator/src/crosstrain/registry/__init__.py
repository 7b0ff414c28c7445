"""Registered services and the engines they offer."""

from .channels import MESSAGE_LIMIT, Channels
from .registry import Registry
from .resolve import Offer, resolve

__all__ = ["MESSAGE_LIMIT", "Channels", "Offer", "Registry", "resolve"]
