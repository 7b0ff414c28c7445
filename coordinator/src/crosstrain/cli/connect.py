"""Finds a running coordinator, or starts what a command needs in this process."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from crosstrain.client import Client
from crosstrain.launch.catalogue import Catalogue, CatalogueError, load_catalogue
from crosstrain.launch.state import InUse, StateFolder, running, state_folder
from crosstrain.launch.supervise import DEFAULT_ADDRESS, ServiceStatus, Supervisor
from crosstrain.spec import JobSpec
from crosstrain_protos.v1 import coordinator_pb2
from crosstrain_service.errors import CrosstrainError

from .exits import CommandError
from .failures import quiet_libraries
from .options import Connection
from .output import Output
from .signals import uninterrupted

#: Seconds to wait until services that are ready have registered.
REGISTER_SECONDS = 60.0
_POLL_SECONDS = 0.5
_NO_COORDINATOR = "no coordinator answers at {address}"
_REMEDY = "start one with 'crosstrain up', or name one with --coordinator"


def find_address(given: str, state_dir: Path | None) -> str:
    """The address given, else that of 'crosstrain up' in the state folder, else the usual one."""
    if given:
        return given
    found = running(state_folder(state_dir))
    return found.address if found and found.address else DEFAULT_ADDRESS


def answers(address: str) -> bool:
    """Whether a coordinator answers there within a few seconds."""
    quiet_libraries()
    with Client(address, timeout=3.0) as client:
        try:
            client.list_engines()
        except CrosstrainError as error:
            return error.reason != "SERVICE_UNREACHABLE"
    return True


@contextmanager
def connected(connection: Connection) -> Iterator[Client]:
    """A client of a running coordinator; raises CommandError if there is none."""
    address = find_address(connection.coordinator, connection.state_dir)
    if not answers(address):
        raise CommandError(_NO_COORDINATOR.format(address=address), remedy=_REMEDY)
    with Client(address) as client:
        yield client


@contextmanager
def connected_or_started(
    connection: Connection, spec: JobSpec
) -> Iterator[tuple[Client, Supervisor | None]]:
    """A client of a running coordinator, or of one that is started here with the services of a job's engines.

    What was started here is stopped at the end. A coordinator that was named and does not
    answer is an error; one that another command started for its own job is waited for.
    """
    output = connection.output
    folder = _joined_or_locked(output, connection.coordinator, connection.state_dir)
    if isinstance(folder, str):
        with Client(folder) as client:
            yield client, None
        return
    supervisor = None
    try:
        catalogue = load_catalogue()
        names = services_of(catalogue, spec.engines)
        supervisor = Supervisor(
            folder, catalogue, names, "127.0.0.1:0", temporary=True, say=output.note, extras=additions_for(spec)
        )
        supervisor.start()
        with Client(supervisor.address) as client:
            _wait_registered(client, supervisor.services)
            yield client, supervisor
    finally:
        if supervisor is not None:
            with uninterrupted():
                supervisor.stop()
        folder.release()


def _joined_or_locked(output: Output, given: str, state_dir: Path | None) -> str | StateFolder:
    """The address of a coordinator that answers, or the state folder, held for starting one."""
    path = state_folder(state_dir)
    told = False
    while True:
        found = None if given else running(path)
        if found is None or (found.ready and not found.temporary):
            address = find_address(given, state_dir)
            if answers(address):
                return address
            if given:
                raise CommandError(_NO_COORDINATOR.format(address=given), remedy=_REMEDY)
            with contextlib.suppress(InUse):
                return StateFolder(path)
        if not told:
            output.note("another crosstrain command is at work in this state folder; waiting for it")
            told = True
        time.sleep(_POLL_SECONDS)


def additions_for(spec: JobSpec) -> set[str]:
    """Additions of services that a job's ranks communicate by; an engine without means of its own takes MPI."""
    backends: set[str] = {parallel.backend for parallel in map(spec.parallel_of, spec.engines) if parallel.ranks > 1}
    return {"mpi" if backend == "auto" else backend for backend in backends} - {"native"}


def services_of(catalogue: Catalogue, engines: Sequence[str]) -> set[str]:
    """Names of the services that host some engines; raises CommandError for an unknown engine."""
    try:
        return {catalogue.service_for(_base(engine)).name for engine in engines}
    except CatalogueError as error:
        raise CommandError(str(error)) from None


def available(
    client: Client, supervisor: Supervisor | None, engines: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    """Engines that can run now, and why each of the others cannot."""
    registered = client.list_engines()
    reasons: dict[str, str] = {}
    for engine in engines:
        offers = [item for item in registered if offers_engine(item, engine)]
        if any(not item.description.unavailable_reason and item.healthy for item in offers):
            continue
        if offers:
            reasons[engine] = offers[0].description.unavailable_reason or "its service does not answer"
        else:
            reasons[engine] = _reason(supervisor, engine)
    return [engine for engine in engines if engine not in reasons], reasons


def offers_engine(item: coordinator_pb2.RegisteredEngine, engine: str) -> bool:
    """Whether a registered engine is one that ``name`` or ``name@version`` may mean, whatever follows in brackets."""
    name, _, version = _base(engine).partition("@")
    own = item.description.version
    # A version may be cut after any of its parts: 2.13 and 2.13.0 both mean 2.13.0+cpu.
    begins = own.startswith(version) and not own[len(version) : len(version) + 1].isalnum()
    return item.description.name == name and (not version or begins)


def _base(engine: str) -> str:
    """An engine as a job writes it, without settings in brackets."""
    return engine.partition("[")[0]


def _reason(supervisor: Supervisor | None, engine: str) -> str:
    if supervisor is not None:
        try:
            name = load_catalogue().service_for(_base(engine)).name
        except CatalogueError as error:
            return str(error)
        for status in supervisor.services:
            if status.service.name == name and status.reason:
                return f"{status.reason}. To fix it: {status.remedy}"
    return "no registered service offers it"


def _wait_registered(client: Client, services: Sequence[ServiceStatus]) -> None:
    """Waits until every service that is ready has registered."""
    deadline = time.monotonic() + REGISTER_SECONDS
    while time.monotonic() < deadline:
        wanted = {status.service.name for status in services if status.state == "ready"}
        try:
            if wanted <= {item.service for item in client.list_engines()}:
                return
        except CrosstrainError as error:
            if error.reason != "SERVICE_UNREACHABLE":
                raise
        time.sleep(0.2)
