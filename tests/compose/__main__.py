"""Builds the images, starts the compose stack and tests it from outside: ``make e2e-compose``.

Needs a Docker client with buildx, and compose v2. Where no Docker daemon answers and this user is root, one is started
(``dockerd``) that keeps its images in the cache folder. Where no registry of images answers, base images are made of
Debian and of this machine's Pythons (``mmdebstrap``); they are for these tests only. Takes about an hour on two
cores when nothing is cached, and 30 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from crosstrain.launch.environments import cache_root

from . import bases, images
from .docker import COMPOSE_VARIABLE, Daemon, DockerUnavailable, check_tools, compose_command, daemon_answers

FOLDER = Path(__file__).resolve().parent
_BEGAN = time.monotonic()
#: Servers that tests put beside the stack, where a registry answers.
_IMAGES = {"PROMETHEUS_IMAGE": "prom/prometheus:v3.5.0", "POSTGRES_IMAGE": "postgres:15-bookworm"}


def say(text: str) -> None:
    """Prints a line of progress with the time since the start."""
    seconds = int(time.monotonic() - _BEGAN)
    print(f"[{seconds // 60:>3}:{seconds % 60:02}] {text}", flush=True)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(
        prog="make e2e-compose OPTIONS='...'", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    result.add_argument("--bases", choices=("auto", "registry", "offline"), default="auto",
                        help="base images of a registry, or made here (default: auto, a registry if one answers)")
    result.add_argument("--rebuild-bases", action="store_true", help="make base images again that were made before")
    result.add_argument("--data-root", type=Path, default=cache_root() / "e2e-docker",
                        help="folder of the Docker daemon that is started if none answers (default: %(default)s)")
    result.add_argument("--image", action="append", default=[], metavar="TARGET",
                        help="build only this target of the bake file; the others must be there (may be repeated)")
    result.add_argument("--no-build", action="store_true", help="test the images that were built before")
    result.add_argument("--no-tests", action="store_true", help="only build")
    result.add_argument("pytest", nargs="*", help="options for pytest, after --: for example -- -k versions")
    return result  # fmt: skip


def main() -> int:
    """Exit status 0 if all was built and all tests passed; 3 if Docker cannot be had."""
    options = parser().parse_args()
    try:
        with ExitStack() as stack:
            check_tools()
            if not daemon_answers():
                stack.callback(Daemon(options.data_root, say).close)
            os.environ[COMPOSE_VARIABLE] = " ".join(compose_command())
            return execute(options)
    except DockerUnavailable as reason:
        print(f"cannot run here: {reason}", file=sys.stderr)
        return 3
    except AssertionError as failure:
        print(failure, file=sys.stderr)
        return 1


def execute(options: argparse.Namespace) -> int:
    """Builds and tests on the daemon that answers."""
    registry = options.bases == "registry" or (
        options.bases == "auto" and bases.registry_answers("debian:bookworm-slim")
    )
    variables = {"PREFIX": "crosstrain-e2e", "CROSSTRAIN_PREFIX": "crosstrain-e2e", "REVISION": revision()}
    say("bases come from a registry" if registry else "no registry of images: bases are made here")
    if registry:
        variables |= _IMAGES
    else:
        variables |= bases.make_bases(say, options.rebuild_bases)
        variables |= bases.make_servers(say, options.rebuild_bases)
    lists = cache_root() / "e2e-lists"
    if not options.no_build:
        built = images.build(variables, not registry, options.image, lists, say)
        say(f"{len(built)} images, {sum(item.seconds for item in built):.0f} s")
    if options.no_tests:
        return 0
    os.environ["CROSSTRAIN_E2E_SETUP"] = json.dumps({**variables, "LISTS": str(lists)})
    say("tests")
    code = pytest.main([str(FOLDER), "-v", "--timeout=3600", "-p", "no:cacheprovider", *options.pytest])
    say("passed" if code == 0 else "failed")
    return int(code)


def revision() -> str:
    """The commit that is built, with ``-dirty`` if files differ from it."""
    command = ["git", "-C", str(images.ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
