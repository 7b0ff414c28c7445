"""Builds the images of docker-bake.hcl, one after the other."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from .bases import wheel_index
from .docker import docker, run

ROOT = Path(__file__).resolve().parents[2]
BAKE = ["docker", "buildx", "bake", "--file", "docker/docker-bake.hcl"]
#: The image that takes a package from an index of its own.
OWN_INDEX = "torch-cpu"
_BUILD_SECONDS = 3600


class Built(NamedTuple):
    """An image that was built: target of the bake file, name, seconds it took, bytes."""

    target: str
    image: str
    seconds: float
    size: int


def targets(group: str, variables: dict[str, str] | None = None) -> dict[str, dict[str, Any]]:
    """Targets of a group of the bake file, as buildx understands them."""
    done = run([*BAKE, "--print", group], variables=variables, folder=ROOT)
    return dict(json.loads(done.stdout)["target"])


def build(
    variables: dict[str, str], offline: bool, chosen: list[str], lists: Path, say: Callable[[str], None]
) -> list[Built]:
    """Builds the CPU images of the bake file, or those of them that are ``chosen``.

    Their lists of packages (the bake file's ``sbom`` targets) go to folders of ``lists``, by target. With ``offline``
    the CPU build of PyTorch is what pip takes for it on this machine.
    """
    found = targets("cpu", variables)
    unknown = set(chosen) - set(found)
    if unknown:
        raise ValueError(f"no such image: {', '.join(sorted(unknown))}; there are {', '.join(found)}")
    built = []
    for name in chosen or found:
        say(f"building {name}")
        began = time.monotonic()
        if offline and name == OWN_INDEX:
            _with_own_index(found[name], lists / name, variables)
        else:
            _bake(["--load", name], variables)
            _bake([f"sbom-{name}", "--set", f"*.output=type=local,dest={lists / name}"], variables)
        (image,) = found[name]["tags"]
        size = int(docker("image", "inspect", "--format", "{{.Size}}", image))
        built.append(Built(name, image, time.monotonic() - began, size))
        say(f"built {image}: {built[-1].seconds:.0f} s, {size / 1e6:.0f} MB")
    return built


def _with_own_index(target: dict[str, Any], lists: Path, variables: dict[str, str]) -> None:
    """Builds a target as bake would, on the host's network: bake 0.13 does not pass on a target's network."""
    with tempfile.TemporaryDirectory() as folder, wheel_index(target["args"]["EXTRA"], Path(folder)) as url:
        arguments = [f"--build-arg={key}={value}" for key, value in {**target["args"], "EXTRA_INDEX": url}.items()]
        image = ["--load", f"--target={target['target']}", f"--tag={target['tags'][0]}"]
        packages = ["--target=sbom", f"--output=type=local,dest={lists}"]
        for output in (image, packages):
            _show_on_failure(
                ["docker", "buildx", "build", "--progress=plain", "--network=host", *arguments, *output,
                 f"--file={target['dockerfile']}", target["context"]],
                variables,
            )  # fmt: skip


def _bake(arguments: list[str], variables: dict[str, str]) -> None:
    _show_on_failure([*BAKE, "--progress=plain", *arguments], variables)


def _show_on_failure(command: list[str], variables: dict[str, str]) -> None:
    """Runs a build; what it printed is shown only when it fails."""
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **variables}, check=False, text=True, errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_BUILD_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-6000:]}"
