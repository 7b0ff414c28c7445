"""Registered services and the engines they offer."""

from .channels import MESSAGE_LIMIT, Channels
from .registry import DESCRIBE_TIMEOUT, Registry
from .replicas import choose_replicas
from .resolve import Offer, resolve

__all__ = ["DESCRIBE_TIMEOUT", "MESSAGE_LIMIT", "Channels", "Offer", "Registry", "choose_replicas", "resolve"]
