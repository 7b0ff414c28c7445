"""Options and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
