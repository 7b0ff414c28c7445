"""Builds every environment with all additions and its test tools, or removes them all. Standard library only."""

from __future__ import annotations

import argparse
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "coordinator" / "src"))

from crosstrain.launch.catalogue import load_catalogue  # noqa: E402
from crosstrain.launch.environments import (  # noqa: E402
    Unavailable,
    cache_root,
    coordinator_environment,
)
from crosstrain.launch.extras import equipped_environment  # noqa: E402

_PARALLEL_BUILDS = 2


def say(line: str) -> None:
    print(f"[setup] {line}", flush=True)


def build_all() -> int:
    """Builds what can be built; 1 when an environment is unavailable."""
    catalogue = load_catalogue(ROOT / "services" / "services.toml")
    with ThreadPoolExecutor(_PARALLEL_BUILDS) as pool:
        builds = [pool.submit(coordinator_environment, catalogue, tests=True, progress=say)]
        for service in catalogue.services:
            builds.append(pool.submit(equipped_environment, service, catalogue, tests=True, progress=say))
    failed = 0
    for build in builds:
        result = build.result()
        if isinstance(result, Unavailable):
            failed += 1
            print(f"{result.service}: unavailable: {result.reason}\n    to fix it: {result.remedy}")
        else:
            print(f"{result.name}: Python {result.version} in {result.folder}")
    return 1 if failed else 0


def remove_all() -> int:
    """Removes the folders that hold the environments and the wheels built for them."""
    for folder in (cache_root() / "envs", cache_root() / "wheels"):
        if folder.is_dir():
            shutil.rmtree(folder)
            print(f"removed {folder}")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--remove", action="store_true", help="remove all environments")
    sys.exit(remove_all() if parser.parse_args().remove else build_all())
