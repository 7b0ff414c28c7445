"""Causes of failed checks: one table of conventions, and which of them explain an engine's values."""

from crosstrain.compare.causes.convention import Convention
from crosstrain.compare.causes.explain import Cause, explain
from crosstrain.compare.causes.table import BY_ID, CONVENTIONS

__all__ = ["BY_ID", "CONVENTIONS", "Cause", "Convention", "explain"]
