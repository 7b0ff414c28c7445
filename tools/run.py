"""Runs a Python script of this repository in the coordinator's environment with the test tools.

``tools/run.py SCRIPT [arguments]``, for example ``tools/run.py benchmarks/overhead.py --help``.
Standard library only.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "coordinator" / "src"))

from crosstrain.launch.catalogue import load_catalogue  # noqa: E402
from crosstrain.launch.environments import Unavailable, coordinator_environment  # noqa: E402


def main() -> int:
    """Replaces this process by the script's."""
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 64
    environment = coordinator_environment(
        load_catalogue(ROOT / "services" / "services.toml"),
        tests=True,
        progress=lambda line: print(f"[setup] {line}", file=sys.stderr),
    )
    if isinstance(environment, Unavailable):
        print(f"{environment.reason}\nto fix it: {environment.remedy}", file=sys.stderr)
        return 3
    variables = {**os.environ, **environment.variables()}
    variables["PYTHONPATH"] = os.pathsep.join([str(ROOT), variables["PYTHONPATH"]])
    os.execve(environment.python, [str(environment.python), *sys.argv[1:]], variables)


if __name__ == "__main__":
    sys.exit(main())
