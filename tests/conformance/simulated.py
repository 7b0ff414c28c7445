"""An engine made of the reference in the run's own type, with one convention changed at will."""

from __future__ import annotations

from crosstrain.compare.testing import Simulated, optimizer_of, reference_update

__all__ = ["Simulated", "optimizer_of", "reference_update"]
