"""Settings of the coordinator: command line over environment over defaults."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from platformdirs import user_state_dir

from crosstrain_service.exposition import check_port

PREFIX = "CROSSTRAIN_"


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a coordinator is started with.

    Attributes:
        listen: host:port; port 0 takes a free one.
        state_dir: folder for the default database, artifacts and imported data.
        database_url: SQLAlchemy URL; empty means SQLite in the state folder.
        artifacts_url: folder or fsspec URL; empty means a folder in the state folder.
        data_dir: the only folder whose files jobs may name; empty means none.
        lease_seconds: a service's registration ends after this time unless it is renewed.
        patience_seconds: a run fails after this time without any answer from its service.
        single_host: all services share one machine although their addresses differ.
        port_file: file to write the port to once the coordinator is ready; empty means none.
        metrics_port: port of /metrics: a number, "auto" for any free one, "0" for none; empty means 9464 if free.
        metrics_port_file: file to write the port of /metrics to; empty means none.
    """

    listen: str = "127.0.0.1:7440"
    state_dir: str = ""
    database_url: str = ""
    artifacts_url: str = ""
    data_dir: str = ""
    lease_seconds: int = 30
    patience_seconds: float = 600.0
    single_host: bool = False
    port_file: str = ""
    metrics_port: str = ""
    metrics_port_file: str = ""

    @property
    def state(self) -> Path:
        """The state folder."""
        return Path(self.state_dir or user_state_dir("crosstrain"))

    @property
    def database(self) -> str:
        """URL of the job store."""
        return self.database_url or f"sqlite:///{self.state.absolute() / 'coordinator.sqlite'}"

    @property
    def artifacts(self) -> str:
        """URL of the artifact store."""
        return self.artifacts_url or str(self.state.absolute() / "artifacts")


_HELP = {
    "listen": "address to listen on, host:port; port 0 takes a free one",
    "state_dir": "folder for the default database, artifacts and imported data",
    "database_url": "job store: sqlite:////path or postgresql://user@host/name (default: SQLite in the state folder)",
    "artifacts_url": "artifact store: a folder, s3://bucket/prefix, memory://name (default: in the state folder)",
    "data_dir": "the only folder whose files jobs may name (default: none)",
    "lease_seconds": "a service's registration ends after this time unless it is renewed",
    "patience_seconds": "a run fails after this time without any answer from its service",
    "single_host": "all services share one machine although their addresses differ (containers)",
    "port_file": "file to write the port to once the coordinator is ready",
    "metrics_port": "port of /metrics for Prometheus, on the host of --listen: a number, auto for any free one, "
    "or 0 for none (default: 9464, or none if that is in use)",
    "metrics_port_file": "file to write the port of /metrics to",
}


def parse(arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ) -> Settings:
    """Settings from the command line; each option also has an environment variable."""
    parser = argparse.ArgumentParser(
        prog="python -m crosstrain.api",
        description="Runs the coordinator: CoordinatorService, ArtifactService, health and reflection over gRPC.",
    )
    for field in dataclasses.fields(Settings):
        variable = PREFIX + field.name.upper()
        option = "--" + field.name.replace("_", "-")
        text = f"{_HELP[field.name]} [${variable}]"
        given = environment.get(variable)
        if field.type == "bool":
            value = (given or "").lower() in ("1", "true", "yes")
            parser.add_argument(option, action=argparse.BooleanOptionalAction, default=value, help=text)
        else:
            kind = {"str": str, "int": int, "float": float}[str(field.type)]
            # argparse converts and checks a default given as text.
            default = given if given else field.default
            parser.add_argument(option, type=kind, default=default, help=text)
    settings = Settings(**vars(parser.parse_args(arguments)))
    if settings.lease_seconds < 1 or settings.patience_seconds <= 0:
        parser.error("times must be greater than 0")
    try:
        check_port(settings.metrics_port)
    except ValueError as error:
        parser.error(f"--metrics-port: {error}")
    return settings
