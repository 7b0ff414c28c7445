"""What the engines of a package can do, found out in a process of its own.

``python -m crosstrain_service.describe PACKAGE`` imports the frameworks, which the front
must not do, and prints one JSON object.
"""

import importlib
import json
import os
import subprocess
import sys
import tempfile
from concurrent import futures
from typing import Any, Callable, Dict, List

from crosstrain_protos.v1 import service_pb2

from .capabilities import EMULATED, EXACT, UNSUPPORTED
from .cores import available_cores
from .errors import CrosstrainError, without_paths
from .fingerprint import processor
from .gpu import gpus
from .training import Execution

#: Longest time an engine may take to describe itself, seconds.
DESCRIBE_SECONDS = 300.0

Environment = Callable[[str, Execution, str], Dict[str, str]]

#: Begins the line with the description.
_MARK = "crosstrain-describe "

_SUPPORT = {
    EXACT: service_pb2.SUPPORT_EXACT,
    EMULATED: service_pb2.SUPPORT_EMULATED,
    UNSUPPORTED: service_pb2.SUPPORT_UNSUPPORTED,
}


def describe_package(package: str, environment: Environment) -> List[service_pb2.EngineDescription]:
    """Descriptions of all engines of a package; one that cannot be imported says why."""
    names = list(importlib.import_module(package).ENGINES)  # type: ignore[attr-defined]
    with futures.ThreadPoolExecutor(len(names)) as pool:
        return list(pool.map(lambda name: _describe(package, name, environment), names))


def _describe(package: str, name: str, environment: Environment) -> service_pb2.EngineDescription:
    with tempfile.TemporaryDirectory(prefix="crosstrain-describe-") as folder:
        variables = dict(os.environ)
        # With a GPU the framework must see it, or it would declare that it has none.
        variables.update(environment(name, Execution(device="cuda" if gpus() else "cpu"), folder))
        command = [sys.executable, "-m", "crosstrain_service.describe", package, name]
        try:
            process = subprocess.run(command, capture_output=True, env=variables, timeout=DESCRIBE_SECONDS)
        except subprocess.TimeoutExpired:
            return service_pb2.EngineDescription(
                name=name, unavailable_reason="importing its framework took over %d seconds" % DESCRIBE_SECONDS)
    # Frameworks may print as well, before and after.
    for line in process.stdout.decode("utf-8", "replace").splitlines():
        if process.returncode == 0 and line.startswith(_MARK):
            return _from_json(json.loads(line[len(_MARK):]))
    errors = [line for line in process.stderr.decode("utf-8", "replace").splitlines() if line.strip()]
    reason = without_paths(errors[-1])[:500] if errors else ""
    return service_pb2.EngineDescription(name=name, unavailable_reason=reason or "describing it failed")


def devices() -> List[service_pb2.DeviceDescription]:
    """The devices of this machine."""
    import psutil

    found = [service_pb2.DeviceDescription(
        name="cpu:0", model="%s, %d cores" % (processor(), len(available_cores())),
        memory_bytes=psutil.virtual_memory().total)]
    for gpu in gpus():
        found.append(service_pb2.DeviceDescription(
            name="cuda:%d" % gpu.index, model=gpu.name, memory_bytes=gpu.memory_bytes, driver=gpu.driver))
    return found


def _from_json(value: Dict[str, Any]) -> service_pb2.EngineDescription:
    description = service_pb2.EngineDescription(
        name=value["name"], version=value["version"], libraries=value["libraries"])
    for name, (support, note) in sorted(value["features"].items()):
        description.features.add(name=name, support=_SUPPORT[support], note=note)
    return description


def main() -> int:
    """Prints the description of one engine."""
    from .child import engine_class

    package, name = sys.argv[1:3]
    try:
        info = engine_class(package, name).info()
    except CrosstrainError as error:
        print(error.message, file=sys.stderr)
        return 1
    print("\n" + _MARK + json.dumps({
        "name": info.name, "version": info.version, "libraries": info.libraries,
        "features": {key: [feature.support, feature.note] for key, feature in info.features.items()},
    }))
    return 0


if __name__ == "__main__":
    sys.exit(main())
