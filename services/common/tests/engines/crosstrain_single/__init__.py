"""Two of the test engines, for services that are started again and again."""

from crosstrain_slow import ENGINES as _ALL
from crosstrain_slow import environment

ENGINES = {name: _ALL[name] for name in ("slow", "stubborn")}

__all__ = ["ENGINES", "environment"]
