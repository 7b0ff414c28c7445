"""Runs the static checks: ruff, mypy, vermin and the API's checks. Standard library only."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "coordinator" / "src"))

from crosstrain.launch.catalogue import load_catalogue  # noqa: E402
from crosstrain.launch.environments import Unavailable, coordinator_environment  # noqa: E402


def say(line: str) -> None:
    print(f"[setup] {line}", flush=True)


def checks(tools: Path) -> list[tuple[str, list[str]]]:
    """Each check's title and command; ``tools`` is the folder with the executables."""
    old = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "services").glob("*/src"))
    new = [folder for folder in ("coordinator", "tools", "tests", "benchmarks", "deploy") if (ROOT / folder).is_dir()]
    listed = [
        # The bare scripts run in the environments of the services.
        ("ruff, Python 3.7", [str(tools / "ruff"), "check", "--target-version=py37", "services", "benchmarks/bare"]),
        ("ruff, Python 3.11",
         [str(tools / "ruff"), "check", "--target-version=py311", "--exclude=benchmarks/bare", *new]),
        ("mypy", [str(tools / "mypy"), "-p", "crosstrain"]),
        ("vermin", [str(tools / "vermin"), "-t=3.7-", "--no-tips", "--violations", *old]),
    ]
    if (ROOT / "tools" / "protos.py").is_file():
        listed.append(("protos", [sys.executable, "tools/protos.py", "check"]))
    return listed


def main() -> int:
    catalogue = load_catalogue(ROOT / "services" / "services.toml")
    environment = coordinator_environment(catalogue, tests=True, progress=say)
    if isinstance(environment, Unavailable):
        print(f"{environment.reason}\nTo fix it: {environment.remedy}", file=sys.stderr)
        return 1
    variables = {**os.environ, "MYPYPATH": environment.variables()["PYTHONPATH"]}
    failed = []
    for title, command in checks(environment.folder / "bin"):
        print(f"=== {title}", flush=True)
        if subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode != 0:
            failed.append(title)
    print(f"failed: {', '.join(failed)}" if failed else "all checks passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
