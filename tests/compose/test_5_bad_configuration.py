"""What keeps a process from starting is one clear line, a container that ends, and never a healthy one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from .docker import docker, run
from .images import targets
from .refusals import Ended, run_until_it_ends, start, wait_healthy
from .stack import SERVICES, Stack

NETWORK = "crosstrain-e2e-bad"
PASSWORD = "not-in-any-log"
#: The state folder that compose gives to every service.
STATE = ("--listen=0.0.0.0:7441", "--state=/data/state", "--artifacts=/data/artifacts")
DATA = "--tmpfs=/data:uid=65532,gid=65532,mode=0700"


@pytest.fixture(scope="module")
def coordinator(setup: dict[str, str]) -> str:
    return str(targets("coordinator", setup)["coordinator"]["tags"][0])


@pytest.fixture(scope="module")
def reference(setup: dict[str, str]) -> str:
    return str(targets("reference", setup)["reference"]["tags"][0])


def refused(ended: Ended, who: str) -> str:
    """The reason, which is the only line that was printed."""
    assert ended.code == 3, ended
    assert ended.health != "healthy"
    assert len(ended.log) == 1, "\n".join(ended.log)
    head = f"the {who} cannot start: "
    assert ended.log[0].startswith(head) and PASSWORD not in ended.log[0], ended.log
    return ended.log[0].removeprefix(head)


class Database(NamedTuple):
    """A PostgreSQL that speaks TLS; two certificates of authorities, one of which is the right one."""

    container: str
    folder: Path

    def url(self, host: str = "database", port: int = 5432, authority: str = "right", password: str = PASSWORD) -> str:
        tls = f"sslmode=verify-full&sslrootcert=/tls/{authority}.crt"
        return f"CROSSTRAIN_DATABASE_URL=postgresql://postgres:{password}@{host}:{port}/postgres?{tls}"

    @property
    def options(self) -> tuple[str, ...]:
        return (f"--network={NETWORK}", f"--volume={self.folder}:/tls:ro", DATA)


@pytest.fixture(scope="module")
def database(setup: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    folder = tmp_path_factory.mktemp("tls")
    folder.chmod(0o755)
    for name in ("right", "wrong"):
        certificate(folder, name, "database")
    (folder / "Dockerfile").write_text(
        f"FROM {setup['POSTGRES_IMAGE']}\nCOPY --chown=postgres right.crt right.key /tls/\nUSER postgres\n"
        "RUN chmod 600 /tls/right.key\n"
    )
    image = "crosstrain-e2e/tls-database"
    docker("buildx", "build", "--load", "--tag", image, folder)
    docker("network", "create", NETWORK)
    container = docker(
        "run", "--detach", f"--network={NETWORK}", "--network-alias=database", "--env", f"POSTGRES_PASSWORD={PASSWORD}",
        image, "-c", "ssl=on", "-c", "ssl_cert_file=/tls/right.crt", "-c", "ssl_key_file=/tls/right.key",
    ).strip()  # fmt: skip
    try:
        yield Database(container, folder)
    finally:
        docker("rm", "--force", "--volumes", container)
        docker("network", "rm", NETWORK)


def certificate(folder: Path, name: str, host: str) -> None:
    """A self-signed certificate, which is its own authority."""
    run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={host}",
         "-addext", f"subjectAltName=DNS:{host}", "-keyout", str(folder / f"{name}.key"),
         "-out", str(folder / f"{name}.crt")])  # fmt: skip


def test_with_the_right_certificate_it_starts(coordinator: str, database: Database) -> None:
    name = start(coordinator, (), (*database.options, "--restart=on-failure", "--env", database.url()))
    try:
        wait_healthy(name)  # restarted until the database is up
    finally:
        docker("rm", "--force", name)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"authority": "wrong"}, "certificate"),
        ({"authority": "absent"}, "certificate"),
        ({"password": "wrong"}, "password"),
        ({"port": 5433}, "does not answer"),
        ({"host": "no-such-host.invalid"}, "does not answer"),
    ],
    ids=["certificate", "certificate-file", "password", "port", "host"],
)
def test_the_database_cannot_be_used(
    coordinator: str, database: Database, wrong: dict[str, object], named: str
) -> None:
    url = database.url(**wrong)  # type: ignore[arg-type]
    reason = refused(run_until_it_ends(coordinator, (), (*database.options, "--env", url)), "coordinator")
    assert named in reason.lower(), reason


def test_the_database_hangs(coordinator: str, database: Database) -> None:
    docker("pause", database.container)
    try:
        ended = run_until_it_ends(coordinator, (), (*database.options, "--env", database.url()))
    finally:
        docker("unpause", database.container)
    assert "does not answer" in refused(ended, "coordinator")


def test_the_store_of_artifacts_has_another_certificate(
    coordinator: str, reference: str, database: Database
) -> None:
    """An S3 that speaks TLS under a certificate that nobody signed whom the coordinator trusts."""
    code = (
        "import http.server, ssl\n"
        "server = http.server.HTTPServer(('0.0.0.0', 9000), http.server.SimpleHTTPRequestHandler)\n"
        "context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)\n"
        "context.load_cert_chain('/tls/wrong.crt', '/tls/wrong.key')\n"
        "server.socket = context.wrap_socket(server.socket, server_side=True)\n"
        "server.serve_forever()\n"
    )
    (database.folder / "wrong.key").chmod(0o644)
    server = docker(
        "run", "--detach", f"--network={NETWORK}", "--network-alias=s3", f"--volume={database.folder}:/tls:ro",
        "--entrypoint=python", reference, "-c", code,
    ).strip()  # fmt: skip
    variables = {
        "CROSSTRAIN_ARTIFACTS_URL": "s3://bucket/artifacts", "AWS_ENDPOINT_URL": "https://s3:9000",
        "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": PASSWORD, "AWS_DEFAULT_REGION": "us-east-1",
    }  # fmt: skip
    try:
        for endpoint, named in (("https://s3:9000", "certificate"), ("https://s3:9001", "connect")):
            given = {**variables, "AWS_ENDPOINT_URL": endpoint}
            options = [part for key, value in given.items() for part in ("--env", f"{key}={value}")]
            ended = run_until_it_ends(coordinator, (), (*database.options, *options))
            assert named in refused(ended, "coordinator").lower(), ended
    finally:
        docker("rm", "--force", server)


def service(*more: str) -> tuple[str, ...]:
    return ("--package=crosstrain_reference", "--service=reference", *STATE, *more)


def test_the_volume_is_missing(coordinator: str, reference: str) -> None:
    assert "read-only" in refused(run_until_it_ends(coordinator), "coordinator").lower()
    assert "read-only" in refused(run_until_it_ends(reference, service()), "service").lower()


def test_the_volume_belongs_to_another_user(coordinator: str, reference: str) -> None:
    options = ("--tmpfs=/data:uid=0,gid=0,mode=0700",)
    assert "permission denied" in refused(run_until_it_ends(coordinator, (), options), "coordinator").lower()
    assert "permission denied" in refused(run_until_it_ends(reference, service(), options), "service").lower()


@pytest.mark.parametrize("size", ["16k", "128k"])
def test_the_disk_is_full(coordinator: str, reference: str, size: str) -> None:
    options = (f"{DATA},size={size}",)
    reason = refused(run_until_it_ends(coordinator, (), options), "coordinator").lower()
    assert "no room" in reason or "no space" in reason
    assert "no space" in refused(run_until_it_ends(reference, service(), options), "service").lower()


def test_the_engine_package_is_not_in_the_image(reference: str) -> None:
    arguments = ("--package=crosstrain_torch", "--service=torch", *STATE)
    assert "crosstrain_torch" in refused(run_until_it_ends(reference, arguments, (DATA,)), "service")


def test_compose_does_not_call_it_up(setup: dict[str, str], digits: Path, tmp_path: Path) -> None:
    """With its restart policy the coordinator is tried again and again, but never healthy, and nothing else starts."""
    override = tmp_path / "override.yaml"
    override.write_text(
        "services:\n  coordinator:\n    environment:\n"
        "      CROSSTRAIN_DATABASE_URL: postgresql://crosstrain@no-such-host.invalid/crosstrain\n"
    )
    stack = Stack(tmp_path, digits, setup, project="crosstrain-e2e-bad")
    stack.overrides.append(override)
    try:
        ran = stack.compose("up", "--detach", "--wait", "--wait-timeout", "40", check=False)
        assert ran.code != 0
        assert stack.health("coordinator") != "healthy"
        lines = set(stack.logs("coordinator").splitlines())
        assert len(lines) == 1 and "the coordinator cannot start: " in lines.pop()
        running = stack.compose("ps", "--services", "--status=running").out.split()
        assert not set(running) & set(SERVICES.values())
        assert stack.crosstrain("engines").code != 0
    finally:
        stack.down()
