"""A package index on this machine whose answers can be held back, and a tiny lock for it."""

from __future__ import annotations

import io
import os
import shutil
import sys
import threading
import zipfile
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from crosstrain.launch import building, environments
from crosstrain.launch.environments import Layer, Recipe

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


def wheel(name: str, version: str) -> bytes:
    """A wheel with one module that holds its version."""
    info = f"{name}-{version}.dist-info"
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr(f"{name}.py", f"VERSION = {version!r}\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return content.getvalue()


class Index:
    """Serves wheels on the loopback interface; ``released`` lets answers go out."""

    def __init__(self) -> None:
        self.wheels = {
            f"tiny-{version}-py3-none-any.whl": wheel("tiny", version) for version in ("1.0", "2.0")
        }
        self.asked = threading.Event()
        self.released = threading.Event()
        self.released.set()
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index.asked.set()
                index.released.wait(60)
                body = index.answer(self.path.strip("/"))
                try:
                    self.send_response(200 if body is not None else 404)
                    self.send_header("Content-Type", "text/html" if self.path == "/" else "application/zip")
                    self.send_header("Content-Length", str(len(body or b"")))
                    self.end_headers()
                    self.wfile.write(body or b"")
                except OSError:
                    pass

            def log_message(self, *_arguments: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/"

    def answer(self, path: str) -> bytes | None:
        if path == "":
            return "".join(f'<a href="{name}">{name}</a>' for name in self.wheels).encode()
        return self.wheels.get(path)


@pytest.fixture
def index() -> Iterator[Index]:
    served = Index()
    yield served
    served.released.set()
    served.server.shutdown()
    served.server.server_close()


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """This process's environment with a cache of its own, and without retries inside pip."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    return {
        **kept,
        "CROSSTRAIN_CACHE": str(tmp_path / "cache"),
        "PIP_RETRIES": "0",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_CACHE_DIR": "1",
    }


@pytest.fixture(scope="session")
def empty_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with nothing but pip, made as the package makes them."""
    folder = tmp_path_factory.mktemp("venv") / "empty"
    with open(os.devnull) as lock:
        building.create_venv(Path(sys.executable), folder, lock.fileno(), None)
    return folder


@pytest.fixture
def copied_venvs(empty_venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds in this process copy one environment: installing pip takes seconds of computing each time. Builds in
    processes of their own still make it.
    """

    def copy(_interpreter: Path, folder: Path, _lock: int, _environ: Mapping[str, str] | None) -> None:
        shutil.copytree(empty_venv, folder, symlinks=True, dirs_exist_ok=True)

    monkeypatch.setattr(environments, "create_venv", copy)


@pytest.fixture
def recipe(tmp_path: Path, index: Index, copied_venvs: None) -> Recipe:
    """One small pure Python package for the running version of Python."""
    lock = tmp_path / "tiny.txt"
    lock.write_text("tiny==1.0\n", encoding="utf-8")
    return Recipe("tiny", (PYTHON,), Layer("base", lock, ("--no-index", "--find-links", index.url)))
