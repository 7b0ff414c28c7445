"""Runs the coordinator until it is told to stop."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Sequence

from sqlalchemy.exc import DBAPIError

from crosstrain_service.errors import CrosstrainError
from crosstrain_service.exposition import MetricsError

from .server import CoordinatorServer
from .settings import parse


def reason(error: BaseException) -> str:
    """One line with what the database said, which clients are not told."""
    text = str(error.orig if isinstance(error, DBAPIError) else error).removesuffix("; try again")
    cause = error.__cause__
    if isinstance(cause, DBAPIError):
        text = f"{text}: {cause.orig}"
    return " ".join(text.split())


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 3: it could not start."""
    settings = parse(arguments)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    for name in ("aiobotocore", "alembic", "botocore"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        server = CoordinatorServer(settings)
    except (CrosstrainError, DBAPIError, MetricsError, OSError, ValueError) as error:
        print(f"the coordinator cannot start: {reason(error)}", file=sys.stderr)
        return 3
    told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: told.set())
    server.start()
    told.wait()
    server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
