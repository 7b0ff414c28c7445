"""A cache in which the reference service's environment is this interpreter, so that nothing is built."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

from crosstrain.launch.catalogue import load_catalogue
from crosstrain.launch.environments import environment_key, find_environment, service_recipe


def reference_cache(cache: Path) -> dict[str, str]:
    """Fills ``cache`` and returns environment variables for processes that use it."""
    variables = {
        **{name: value for name, value in os.environ.items() if not name.startswith("CROSSTRAIN_")},
        "CROSSTRAIN_CACHE": str(cache),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    recipe = service_recipe(load_catalogue().service("reference"))
    version = recipe.pythons[0]
    folder = cache / "envs" / f"{recipe.name}-{environment_key(recipe.base, version)}"
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    (folder / "crosstrain-complete.json").write_text(json.dumps({"key": "test"}))
    assert find_environment(recipe, variables) is not None
    return variables
