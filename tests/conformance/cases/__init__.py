"""The cases: small networks, data and settings that together cover every row of the semantics table.

What a case needs of an engine follows from its network and settings (``capabilities.features_of_*``). An
engine that declares all of it must compute the case as the reference does; one that lacks something must
refuse it and name what it lacks.
"""

from .builder import EXECUTION, Case
from .convolution import convolution_cases
from .layers import layer_cases
from .networks import network_cases
from .optimizers import optimizer_cases
from .pooling import pooling_cases

__all__ = ["BY_NAME", "CASES", "EXECUTION", "Case"]

CASES = [*convolution_cases(), *pooling_cases(), *layer_cases(), *optimizer_cases(), *network_cases()]
BY_NAME = {item.name: item for item in CASES}
if len(BY_NAME) != len(CASES):
    raise ValueError("two cases have the same name")
