"""Exceptions as messages on stderr, and as JSON where it was asked for."""

from __future__ import annotations

import os
import re
import sys
import traceback
from typing import Any

from typer.exceptions import TyperException

from crosstrain.data import DataError
from crosstrain.launch.catalogue import CatalogueError
from crosstrain.launch.state import InUse
from crosstrain.launch.supervise import StartError
from crosstrain_service.errors import CrosstrainError

from . import exits
from .output import Output, printable

_LINE = re.compile(r"line (\d+): (.*)\Z", re.DOTALL)


class DocumentError(Exception):
    """A job document that cannot be used, with the name of its file; ``error`` says why."""

    def __init__(
        self, error: CrosstrainError, source: str, model_source: str = "", lines_known: bool = True
    ) -> None:
        super().__init__(str(error))
        self.error = error
        self.source = source
        self.model_source = model_source
        self.lines_known = lines_known

    def lines(self) -> list[str]:
        """One line per violation: file, line, field, message."""
        result = []
        for violation in self.error.violations:
            line, text = getattr(violation, "line", None), violation.description
            match = _LINE.match(text)
            if match:
                line, text = int(match.group(1)), match.group(2)
            inside_model = self.model_source and violation.field.startswith("model")
            source = self.model_source if inside_model else self.source
            text = text.removeprefix(f"{violation.field}: ")
            place = source if line is None or not self.lines_known else f"{source}:{line}"
            result.append(": ".join(part for part in (place, violation.field, text) if part))
        return result or [f"{self.source}: {self.error.message}"]


def report(error: Exception) -> int:
    """Prints an error and returns the exit code. What nobody expected keeps its traceback."""
    code = exits.COULD_NOT_RUN
    values: dict[str, Any] = {"reason": "", "message": str(error)}
    if isinstance(error, TyperException):
        code = exits.USAGE
        values["reason"] = "USAGE"
        if error.format_message().startswith("Usage:"):  # no command at all: the help itself
            print(error.format_message(), file=sys.stderr)
            return code
        lines = [f"{error.format_message()} (see --help)"]
    elif isinstance(error, exits.CommandError):
        code = error.code
        lines = [error.message, *([f"To fix it: {error.remedy}"] if error.remedy else [])]
        values |= {"message": error.message, "remedy": error.remedy}
    elif isinstance(error, DocumentError):
        lines = error.lines()
        values |= _values(error.error) | {"lines": lines}
    elif isinstance(error, CrosstrainError):
        lines = [error.message]
        values |= _values(error)
    elif isinstance(error, DataError):
        place = "".join(
            f", {name} {value}"
            for name, value in (("row", error.row), ("column", error.column), ("value", error.value))
            if value is not None
        )
        lines = [f"{error}{place}"]
        values |= {"reason": "INVALID_DATA", "field": error.field, "row": error.row, "column": error.column}
    elif isinstance(error, InUse):
        lines = [f"{error}; stop it with 'crosstrain down', or choose another --state-dir"]
    elif isinstance(error, (CatalogueError, StartError)):
        lines = [str(error)]
    elif isinstance(error, OSError):
        lines = [f"{error.filename}: {error.strerror}" if error.filename else str(error)]
    else:
        traceback.print_exception(error)
        lines = [f"a defect in crosstrain: {type(error).__name__}: {error}"]
        values["reason"] = "INTERNAL"
    if Output.current is not None:
        Output.current.document({"error": values, "exit_code": code})
    elif "--json" in sys.argv and code == exits.USAGE:
        Output(True).document({"error": values, "exit_code": code})
    for line in lines:
        print(f"crosstrain: {printable(line)}", file=sys.stderr)
    return code


def _values(error: CrosstrainError) -> dict[str, Any]:
    violations = [{"field": item.field, "description": item.description} for item in error.violations]
    return {"reason": error.reason, "message": error.message, "field": error.field, "violations": violations}


def quiet_libraries() -> None:
    """Keeps gRPC's own messages off stderr; failed calls are reported as errors."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
