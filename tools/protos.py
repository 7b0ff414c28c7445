#!/usr/bin/env python3
"""Generates and checks the Python code of the API.

    tools/protos.py generate   writes protos/python/crosstrain_protos/v1 from protos/crosstrain/v1
    tools/protos.py check      generated code up to date, buf lint, buf breaking; exit code 1 if not
    tools/protos.py baseline   renews protos/baseline.binpb (with a release; see protos/README.md)

Runs on the standard library with Python 3.11 or newer. protoc, the stub plugin and buf come from two
virtual environments in the user cache, built from protos/locks on first use. protoc needs an
interpreter of Python 3.10 or 3.7.
"""

from __future__ import annotations

import argparse
import difflib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
PACKAGE = PROTOS / "python" / "crosstrain_protos" / "v1"
BASELINE = PROTOS / "baseline.binpb"

sys.path.insert(0, str(ROOT / "coordinator" / "src"))

from crosstrain.launch.environments import (  # noqa: E402
    Environment,
    Layer,
    Recipe,
    Unavailable,
    build_environment,
)

PROTOC = Recipe("protos-protoc", ("3.10", "3.7"), Layer("protoc", PROTOS / "locks" / "protoc.txt"))
TOOLS = Recipe("protos-tools", ("3.11", "3.12", "3.13"), Layer("tools", PROTOS / "locks" / "tools.txt"))

_GENERATED = re.compile(r".*_pb2(_grpc)?\.pyi?")
# The import package differs from the proto package, since "crosstrain" is the coordinator's.
_IMPORT = re.compile(r"^from crosstrain\.v1 import ", re.MULTILINE)
_MODULE = re.compile(r"'__module__' : 'crosstrain\.v1\.")
# The stub plugin declares constants that this older generator does not write.
_ABSENT_CONSTANT = re.compile(r"^GRPC(_GENERATED)?_VERSION: str\n", re.MULTILINE)


class ToolError(Exception):
    """A tool is missing or failed; the message says which and why."""


def environment(recipe: Recipe) -> Environment:
    """The recipe's environment, built on first use. Raises ToolError when it cannot be had."""
    built = build_environment(recipe, progress=lambda line: print(line, file=sys.stderr))
    if isinstance(built, Unavailable):
        raise ToolError(f"{built.service}: {built.reason} ({built.remedy})")
    return built


def proto_files(protos: Path = PROTOS) -> list[str]:
    """The API's files relative to the module's root, as buf and protoc name them."""
    return sorted(str(path.relative_to(protos)) for path in protos.glob("crosstrain/v1/*.proto"))


def generate(target: Path, protos: Path = PROTOS) -> list[Path]:
    """Writes the generated modules and stubs into ``target``; removes those of deleted protos.

    Raises ToolError when protoc or its plugin fails.
    """
    tools = environment(TOOLS).folder / "bin"
    with tempfile.TemporaryDirectory() as scratch:
        command = [
            *(str(environment(PROTOC).python), "-m", "grpc_tools.protoc", "-I."),
            f"--plugin=protoc-gen-mypy={tools / 'protoc-gen-mypy'}",
            f"--plugin=protoc-gen-mypy_grpc={tools / 'protoc-gen-mypy_grpc'}",
            *(f"--{kind}_out={scratch}" for kind in ("python", "grpc_python")),
            *(f"--{kind}_out=quiet:{scratch}" for kind in ("mypy", "mypy_grpc")),
            *proto_files(protos),
        ]
        _run(command, protos)
        with_service = {
            path.stem
            for path in Path(scratch, "crosstrain", "v1").glob("*_pb2_grpc.py")
            if "Servicer" in path.read_text()
        }
        written = []
        target.mkdir(parents=True, exist_ok=True)
        for path in sorted(Path(scratch, "crosstrain", "v1").iterdir()):
            if path.stem.endswith("_grpc") and path.stem not in with_service:
                continue
            (target / path.name).write_text(_renamed(path.read_text(encoding="utf-8")), encoding="utf-8")
            written.append(target / path.name)
    for path in _generated_in(target):
        if path not in written:
            path.unlink()
    return written


def _renamed(text: str) -> str:
    text = _IMPORT.sub("from crosstrain_protos.v1 import ", text)
    text = _MODULE.sub("'__module__' : 'crosstrain_protos.v1.", text)
    return _ABSENT_CONSTANT.sub("", text)


def _generated_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if _GENERATED.fullmatch(path.name))


def differences(package: Path = PACKAGE, protos: Path = PROTOS) -> Iterator[str]:
    """Unified diffs between the generated files in ``package`` and fresh ones; empty when equal."""
    with tempfile.TemporaryDirectory() as scratch:
        fresh = {path.name: path.read_text(encoding="utf-8") for path in generate(Path(scratch), protos)}
    committed = {path.name: path.read_text(encoding="utf-8") for path in _generated_in(package)}
    for name in sorted(set(fresh) | set(committed)):
        old, new = committed.get(name, ""), fresh.get(name, "")
        if old != new:
            diff = difflib.unified_diff(
                old.splitlines(), new.splitlines(), f"committed/{name}", f"generated/{name}", lineterm=""
            )
            yield "\n".join(diff) or f"{name}: only on one side, or another line ending"


def buf(arguments: Sequence[str], protos: Path = PROTOS) -> str:
    """Runs buf in the module's folder and returns what it printed.

    Raises ToolError, with buf's findings as message, when it ends with another code than 0.
    """
    return _run([str(environment(TOOLS).folder / "bin" / "buf"), *arguments], protos)


def lint(protos: Path = PROTOS) -> None:
    """Style, comments and formatting. Raises ToolError with the findings."""
    buf(["lint"], protos)
    buf(["format", "--diff", "--exit-code"], protos)


def breaking(protos: Path = PROTOS, baseline: Path = BASELINE) -> None:
    """Compatibility with the last released API. Raises ToolError with the findings."""
    buf(["breaking", "--against", str(baseline)], protos)


def _run(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise ToolError(
            (done.stdout + done.stderr).strip() or f"{command[0]} ended with code {done.returncode}"
        )
    return done.stdout


def check() -> int:
    """Runs every check, prints what each found, and returns the exit code."""
    failures = 0
    for name, findings in (
        ("generated code", lambda: "\n".join(differences())),
        ("lint", lambda: lint()),
        ("breaking changes", lambda: breaking()),
    ):
        try:
            found = findings() or ""
        except ToolError as error:
            found = str(error)
        print(f"{name}: {'FAILED' if found else 'ok'}")
        if found:
            print(found)
            failures += 1
    return 1 if failures else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Generates and checks the Python code of the API.")
    parser.add_argument("command", choices=("generate", "check", "baseline"))
    command = parser.parse_args().command
    try:
        if command == "check":
            return check()
        if command == "generate":
            print(f"{len(generate(PACKAGE))} files in {PACKAGE.relative_to(ROOT)}")
        else:
            buf(["build", "--exclude-source-info", "-o", str(BASELINE)])
            print(f"wrote {BASELINE.relative_to(ROOT)}")
    except ToolError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
