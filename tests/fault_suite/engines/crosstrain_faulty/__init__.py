"""The real engines of a service with one convention made wrong, for the fault suite only.

``CROSSTRAIN_FAULTY_PACKAGE`` names the package of the real engines. A probe case's model is named
"fault.<plant>"; ``plants_*`` say what each plant does. Any other name leaves the engine as it is. This module
imports no framework.
"""

import importlib
import os

PACKAGE = os.environ["CROSSTRAIN_FAULTY_PACKAGE"]

_real = importlib.import_module(PACKAGE)

#: The real engine's "module:Class" by name.
REAL = dict(_real.ENGINES)

ENGINES = {name: "crosstrain_faulty.engine:" + name for name in REAL}

environment = _real.environment
if hasattr(_real, "processes"):
    processes = _real.processes
if hasattr(_real, "refusal"):
    refusal = _real.refusal
