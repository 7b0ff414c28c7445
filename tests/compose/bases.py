"""Base images for a machine that reaches a package index but no registry of images: for these tests only.

Debian 12 by ``mmdebstrap``; Python 3.11 is Debian's, others are interpreters of this machine copied to
``/usr/local``. What pip needs here to reach its index (a bundle of certificates, the index) is put into the bases,
so the Dockerfiles know nothing of it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from crosstrain.launch.interpreters import find_interpreter

from .docker import DockerUnavailable, docker, run

SUITE = "bookworm"
#: Libraries that modules of Python's own library load.
LIBRARIES = (
    "libbz2-1.0", "libexpat1", "libffi8", "liblzma5", "libncursesw6", "libnsl2", "libreadline8", "libsqlite3-0",
    "libssl3", "libtirpc3", "libuuid1", "zlib1g",
)  # fmt: skip
#: Variables of docker-bake.hcl by the Python that the base must have; None is Debian without one.
BASES = {"DEBIAN12_BASE": None, "PYTHON311_BASE": "3.11", "PYTHON310_BASE": "3.10", "PYTHON37_BASE": "3.7"}
_PREFIX = "crosstrain-e2e-base"
_INDEX_PORT = 17443
#: What the entry point of PostgreSQL's own image does with POSTGRES_PASSWORD.
_POSTGRES = """
initdb --auth-local=trust --auth-host=scram-sha-256 >/dev/null
echo host all all all scram-sha-256 >>$PGDATA/pg_hba.conf
echo "ALTER USER postgres PASSWORD '$POSTGRES_PASSWORD'" | postgres --single postgres >/dev/null
exec postgres -c listen_addresses='*' -c unix_socket_directories=/tmp "$@"
"""
_BUNDLE = "/usr/local/share/package-index.crt"


def make_bases(say: Callable[[str], None], rebuild: bool = False) -> dict[str, str]:
    """Names of the base images by variable of docker-bake.hcl, made where they do not exist yet."""
    names = {variable: f"{_PREFIX}:{'python' + version if version else SUITE}" for variable, version in BASES.items()}
    for variable, name in names.items():
        if not rebuild and docker("images", "--quiet", name).strip():
            continue
        say(f"making the base {name}")
        version = BASES[variable]
        if version is None:
            _debian(name)
        else:
            _with_python(name, names["DEBIAN12_BASE"], version)
    return names


def make_servers(say: Callable[[str], None], rebuild: bool = False) -> dict[str, str]:
    """Images of Debian's Prometheus and PostgreSQL, used like those of their makers, by variable."""
    clean = "rm -rf /var/lib/apt/lists/*"
    install = f"FROM {_PREFIX}:{SUITE}\nRUN apt-get update && apt-get install -y --no-install-recommends"
    lines = {
        "prometheus": [
            f"{install} prometheus && {clean} && install -d -o nobody /prometheus",
            "USER nobody",
            'ENTRYPOINT ["/usr/bin/prometheus"]',
        ],
        "postgres": [
            f"{install} postgresql && {clean}",
            "ENV PATH=/usr/lib/postgresql/15/bin:$PATH PGDATA=/tmp/data",
            "USER postgres",
            f"ENTRYPOINT {json.dumps(['sh', '-c', _POSTGRES, 'postgres'])}",
        ],
    }
    names = {f"{server.upper()}_IMAGE": f"{_PREFIX}:{server}" for server in lines}
    for server, text in lines.items():
        name = f"{_PREFIX}:{server}"
        if rebuild or not docker("images", "--quiet", name).strip():
            say(f"making the image {name}")
            _build(name, text)
    return names


def _debian(name: str) -> None:
    if shutil.which("mmdebstrap") is None:
        raise DockerUnavailable("mmdebstrap makes the bases where no registry is reached (Debian package mmdebstrap)")
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "debian.tar"
        run(["mmdebstrap", "--variant=minbase", "--include=ca-certificates", SUITE, str(archive)])
        raw = f"{_PREFIX}:raw"
        docker("import", archive, raw)
        lines = [f"FROM {raw}"]
        settings = _pip_settings()
        bundle = settings.pop("cert", "")
        if bundle:
            shutil.copy(bundle, Path(folder) / "bundle.crt")
            settings["cert"] = _BUNDLE
            lines.append(f"COPY bundle.crt {_BUNDLE}")
        text = "".join(f"{key} = {value}\n" for key, value in settings.items())
        (Path(folder) / "pip.conf").write_text(f"[global]\n{text}")
        archive.unlink()
        _build(name, [*lines, "COPY pip.conf /etc/pip.conf"], Path(folder))


def _pip_settings() -> dict[str, str]:
    """How pip reaches its index on this machine: certificates and an index that a container reaches too."""
    listed = run([sys.executable, "-m", "pip", "config", "list"]).stdout
    found: dict[str, str] = {}
    for line in listed.splitlines():  # the environment's lines come after those of the files and win
        key, _, value = line.partition("=")
        name, text = key.rpartition(".")[2], value.strip("'\"")
        if name == "cert" or (name in ("index-url", "extra-index-url") and text.startswith(("http:", "https:"))):
            found[name] = text
    if "cert" not in found and os.environ.get("SSL_CERT_FILE"):
        found["cert"] = os.environ["SSL_CERT_FILE"]
    return found


def _with_python(name: str, debian: str, version: str) -> None:
    clean = "&& rm -rf /var/lib/apt/lists/*"
    install = f"FROM {debian}\nRUN apt-get update && apt-get install -y --no-install-recommends"
    if version == "3.11":
        _build(name, [f"{install} python3 python3-venv {clean}"])
        return
    search = find_interpreter(version, headers=True)
    if search.found is None:
        raise DockerUnavailable(f"no Python {version} is on this machine to make a base from (pyenv, uv)")
    prefix = Path(run([str(search.found.path), "-c", "import sys; print(sys.base_prefix)"]).stdout.strip())
    if prefix == Path("/usr"):
        raise DockerUnavailable(f"{search.found.path} is a part of this system and cannot be copied (pyenv, uv)")
    with tempfile.TemporaryDirectory() as folder:
        # An interpreter finds its library beside itself; the linker's cache finds libpython in /usr/local/lib.
        shutil.copytree(
            prefix, Path(folder) / "python", symlinks=True,
            ignore=shutil.ignore_patterns("__pycache__", "site-packages", "test", "share", "*.a"),
        )  # fmt: skip
        links = f"ln -sf python{version} /usr/local/bin/python3"
        _build(name, [
            f"{install} {' '.join(LIBRARIES)} {clean}",
            "COPY python/ /usr/local/",
            f"RUN mkdir -p /usr/local/lib/python{version}/site-packages && {links} && ldconfig"
            " && python3 -m venv /tmp/tried && rm -r /tmp/tried",
        ], Path(folder))  # fmt: skip


def _build(name: str, lines: list[str], folder: Path | None = None) -> None:
    with tempfile.TemporaryDirectory() as empty:
        context = folder or Path(empty)
        (context / "Dockerfile").write_text("\n".join(lines) + "\n")
        docker("buildx", "build", "--load", "--tag", name, context, timeout=1200)


@contextmanager
def wheel_index(requirement: str, folder: Path) -> Iterator[str]:
    """Serves what pip takes on this machine for one requirement as a package index; its URL.

    PyPI has only the CUDA build of PyTorch; a machine without a way to PyTorch's own index may be set up to find a
    CPU build elsewhere. The server listens on the loopback address, so builds need the host's network.
    """
    name = requirement.partition("==")[0]
    (folder / name).mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--python-version=3.11",
               "--only-binary=:all:", f"--dest={folder / name}", requirement]  # fmt: skip
    run(command, timeout=1800)
    handler = partial(_Quiet, directory=str(folder))
    with _server(handler) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def _server(handler: Callable[..., SimpleHTTPRequestHandler]) -> ThreadingHTTPServer:
    try:
        # Always the same URL, so that the cache of builds knows the layer again.
        return ThreadingHTTPServer(("127.0.0.1", _INDEX_PORT), handler)
    except OSError:
        return ThreadingHTTPServer(("127.0.0.1", 0), handler)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nothing: pip says what it takes."""


def registry_answers(image: str) -> bool:
    """Whether a registry gives an image's description."""
    try:
        done = subprocess.run(
            ["docker", "manifest", "inspect", image], capture_output=True, timeout=60, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0

