"""The commands in order, and how errors become messages and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from . import exits
from .commands import data, exchange, jobs, machine, training, verdicts
from .options import Command, spread
from .output import Output

_EXITS = """Exit codes: 0 ok, and where there is a verdict, the same function (IDENTICAL, ROUNDING); 1 MISMATCH;
2 INCONCLUSIVE; 3 something could not run or be compared (an engine failed or was refused, the document or data
cannot be used, artifacts are damaged, no coordinator); 64 wrong usage; 130 interrupted."""

#: As the help lists them; a command has the name of its function.
_COMMANDS: tuple[Command, ...] = (
    machine.up,
    machine.down,
    training.run,
    training.check,
    training.scale,
    training.migrate,
    verdicts.compare,
    verdicts.verdict,
    training.submit,
    jobs.watch,
    jobs.jobs,
    jobs.show,
    jobs.cancel,
    jobs.engines,
    training.evaluate,
    jobs.export_results,
    machine.doctor,
    machine.demo,
)
#: Groups by name, with their help and their commands.
_GROUPS: tuple[tuple[str, str, dict[str, Command]], ...] = (
    (
        "data",
        "Look at data before training on it: check, import, and what every engine sees of it.",
        {"check": data.check, "import": data.import_source, "consistency": data.consistency},
    ),
    ("import", "Take over a model of another tool.", {"caffe": exchange.import_caffe}),
    (
        "export",
        "Give a model to another tool.",
        {"caffe": exchange.export_caffe, "torch": exchange.export_torch, "keras": exchange.export_keras},
    ),
)


def _application() -> typer.Typer:
    made = typer.Typer(
        name="crosstrain",
        help="Trains one network, from one job file, in many frameworks, and says whether they computed the same.\n\n"
        "Start with 'crosstrain doctor' (what can run here), 'crosstrain demo' (a first comparison), then write "
        "a job file, 'crosstrain check' it (a minute, no training) and 'crosstrain run' it.",
        epilog=_EXITS,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    for command in _COMMANDS:
        made.command()(spread(command))
    for name, text, commands in _GROUPS:
        group = typer.Typer(help=text, no_args_is_help=True, rich_markup_mode=None)
        for inner, command in commands.items():
            group.command(inner)(spread(command))
        made.add_typer(group, name=name)
    return made


app = _application()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit code, for errors too."""
    Output.current = None
    try:
        code = app(args=None if arguments is None else list(arguments), standalone_mode=False)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe (head, less) has enough; keep the interpreter from saying so at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.OK
    except Exception as error:
        from . import failures

        return failures.report(error)
    return code if isinstance(code, int) else exits.OK
