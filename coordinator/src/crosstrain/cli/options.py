"""Options and arguments that several commands share, and groups of them that a command takes as one parameter."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from .output import Output

Command = Callable[..., None]

Json = Annotated[
    bool, typer.Option("--json", help="Print JSON on stdout, for scripts, instead of text for people.")
]
Coordinator = Annotated[
    str,
    typer.Option(
        "--coordinator",
        metavar="HOST:PORT",
        envvar="CROSSTRAIN_COORDINATOR",
        help="The coordinator to talk to. Default: that of 'crosstrain up' here, else 127.0.0.1:7440.",
    ),
]
StateDir = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        envvar="CROSSTRAIN_STATE_DIR",
        help="Folder of 'crosstrain up': jobs, artifacts, logs. Default: in the user's state folder.",
    ),
]
Services = Annotated[
    list[str] | None,
    typer.Option("--service", help="Run only this service of the catalogue (may be repeated). Default: all."),
]
Additions = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        metavar="horovod|mpi",
        help="Install this as well where it can be had (may be repeated); Horovod is compiled, once per machine.",
    ),
]
JobFile = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job document; see docs/jobs.md.")]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="Id of the job, as 'crosstrain jobs' lists it.")]
Results = Annotated[
    Path | None,
    typer.Option("--results", help="Folder for the results. Default: crosstrain-results/<job id>."),
]
ChosenId = Annotated[
    str, typer.Option("--job-id", help="Id of the new job; giving it again finds the same job.")
]
RemoteData = Annotated[
    bool,
    typer.Option("--remote-data", help="The document's data paths are in the coordinator's data directory."),
]
SkipUnavailable = Annotated[
    bool, typer.Option("--skip-unavailable", help="Leave out engines that cannot be had here, and say so.")
]


@dataclasses.dataclass
class Connection:
    """How a command finds its coordinator, and where its words go."""

    coordinator: Coordinator = ""
    state_dir: StateDir = None
    json: Json = False
    output: Output = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.output = Output(self.json)


@dataclasses.dataclass(frozen=True)
class Creation:
    """How a command creates its job."""

    job_id: ChosenId = ""
    skip_unavailable: SkipUnavailable = False


def spread(command: Command) -> Command:
    """The command as typer takes it: each parameter that is a group stands as the options in it."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, tuple[type, list[str]]] = {}
    parameters: list[inspect.Parameter] = []

    def take(name: str, default: Any, hint: Any) -> None:
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint))

    for name, parameter in inspect.signature(command).parameters.items():
        group = hints[name]
        if not dataclasses.is_dataclass(group):
            take(name, parameter.default, group)
            continue
        assert isinstance(group, type)
        options = [field for field in dataclasses.fields(group) if field.init]
        groups[name] = group, [option.name for option in options]
        kinds = get_type_hints(group, include_extras=True)
        for option in options:
            required = option.default is dataclasses.MISSING
            take(option.name, inspect.Parameter.empty if required else option.default, kinds[option.name])

    @functools.wraps(command)
    def spread_command(**given: Any) -> None:
        for name, (group, names) in groups.items():
            given[name] = group(**{option: given.pop(option) for option in names})
        command(**given)

    spread_command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    # typer reads it through inspect.signature; to mypy a function has no such attribute.
    spread_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return spread_command
