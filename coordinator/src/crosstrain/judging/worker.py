"""The process that judges: reads tasks from its standard input, one JSON object a line, and answers each with one.

It ends with its input, and so with the coordinator, whatever ends that. What it writes are artifacts under their
digest: a task that was cut off and is done again changes nothing.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from crosstrain_service.errors import CrosstrainError

from .reading import Reader

_LOG = logging.getLogger("crosstrain.judging")
#: The coordinator and the engines at work come first.
_NICENESS = 5


def certify(reader: Reader, task: dict[str, Any]) -> dict[str, Any]:
    """The checks of one probe run."""
    from .certifying import certify_run

    return {"digest": certify_run(reader, task["run_id"])}


def follow(reader: Reader, task: dict[str, Any]) -> dict[str, Any]:
    """Which further runs a job's verdict needs."""
    from .following import further_runs

    return further_runs(reader, task["job_id"]).to_json()


def judge(reader: Reader, task: dict[str, Any]) -> dict[str, Any]:
    """The verdict of a job."""
    from .documents import judge_job

    return judge_job(reader, task["job_id"])


def compare(reader: Reader, task: dict[str, Any]) -> dict[str, Any]:
    """The verdict over two runs."""
    from .documents import compare_runs

    return compare_runs(reader, task["run_id_a"], task["run_id_b"])


TASKS: dict[str, Callable[[Reader, dict[str, Any]], dict[str, Any]]] = {
    "certify": certify,
    "follow": follow,
    "judge": judge,
    "compare": compare,
}


def answer(reader: Reader, line: str) -> dict[str, Any]:
    """Does one task; every error becomes an answer."""
    try:
        task = json.loads(line)
        return {"ok": TASKS[task["task"]](reader, task)}
    except CrosstrainError as error:
        return {"error": {"reason": error.reason, "message": error.message, "field": error.field}}
    except Exception as error:  # a defect must not end the process without an answer
        _LOG.exception("defect while judging")
        message = f"a defect in judging ({type(error).__name__})"
        return {"error": {"reason": "INTERNAL", "message": message, "field": ""}}


def main() -> int:
    """Serves until the input ends. The first line names the stores."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    os.nice(_NICENESS)
    # Whatever a library prints must not come between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    stores = json.loads(sys.stdin.readline())
    reader = Reader(stores["database_url"], stores["artifacts_url"])
    for line in sys.stdin:
        print(json.dumps(answer(reader, line)), file=answers, flush=True)
    return 0
