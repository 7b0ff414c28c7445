"""Run by ``bin/crosstrain`` with any Python 3.11+: makes the coordinator's environment and enters it.

Standard library only. It is started as a file with ``-I``, so it puts the sources on the
import path itself.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main(arguments: list[str]) -> int:
    """Replaces this process by ``python -m crosstrain``; returns an exit code only on failure.

    Exit code 3 is the command line's own "could not run".
    """
    from crosstrain.launch.catalogue import CatalogueError, load_catalogue
    from crosstrain.launch.environments import Unavailable, coordinator_environment

    try:
        catalogue = load_catalogue()
    except CatalogueError as error:
        print(f"crosstrain: {error}", file=sys.stderr)
        return 3
    environment = coordinator_environment(catalogue, progress=_report)
    if isinstance(environment, Unavailable):
        print(f"crosstrain: {environment.reason}\nTo fix it: {environment.remedy}", file=sys.stderr)
        return 3
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONHOME"}
    variables.update(environment.variables())
    python = str(environment.python)
    os.execve(python, [python, "-m", "crosstrain", *arguments], variables)


def _report(line: str) -> None:
    print(f"[setup] {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    sys.exit(main(sys.argv[1:]))
