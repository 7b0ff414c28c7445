"""Commands that ask a running coordinator."""

from __future__ import annotations

import itertools
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from crosstrain.labels import run_label
from crosstrain.results.names import error_reason, job_state, run_purpose, run_state, verdict_name
from crosstrain.results.tables import moment
from crosstrain_protos.v1 import coordinator_pb2, service_pb2

from .connect import connected
from .options import Connection

_SUPPORT = {
    service_pb2.SUPPORT_EXACT: "exact",
    service_pb2.SUPPORT_EMULATED: "emulated",
    service_pb2.SUPPORT_UNSUPPORTED: "unsupported",
}


def jobs(connection: Connection, limit: int) -> None:
    """Lists jobs, newest first."""
    output = connection.output
    with connected(connection) as client:
        found = list(itertools.islice(client.list_jobs(), limit))
    output.document([job_json(job) for job in found])
    rows = [
        (job.job_id, job.name, job_state(job.state), _time(job.create_time), _time(job.end_time))
        for job in found
    ]
    output.table("", ("job", "name", "state", "created", "ended"), rows)


def show(connection: Connection, job_id: str) -> None:
    """Shows one job."""
    output = connection.output
    with connected(connection) as client:
        job = client.get_job(job_id)
    output.document({**job_json(job), "document": job.document})
    output.text(f"job {job.job_id} ({job.name}): {job_state(job.state)}, created {_time(job.create_time)}")
    if job.HasField("error"):
        output.text(f"{error_reason(job.error.reason)}: {job.error.message}")
    if job.verdict_digest:
        output.text(f"verdict {verdict_name(job.verdict)}; 'crosstrain verdict {job.job_id}' shows it")
    elif job.HasField("verdict_error"):
        output.text(f"no verdict: {error_reason(job.verdict_error.reason)}: {job.verdict_error.message}")
    for remark in job.remarks:
        output.text(f"{remark.severity}: {remark.text}")
    rows = [
        (
            record.run.run_id,
            run_purpose(record.run.kind, record.purpose),
            run_label(record),
            record.repeat,
            run_state(record.run.state),
            record.run.error.message if record.run.HasField("error") else "",
        )
        for record in job.runs
    ]
    output.table("", ("run", "kind", "engine", "repeat", "state", "error"), rows, "lllrll")
    for record in job.runs:
        if record.members:
            members = ", ".join(f"{item.service} ({item.ranks})" for item in record.members)
            output.text(f"{record.run.run_id} spans services (ranks): {members}")
        if record.notice:
            output.text(f"{record.run.run_id}: {record.notice}")
    output.text()
    output.text(job.document)


def cancel(connection: Connection, job_id: str) -> None:
    """Cancels one job."""
    output = connection.output
    with connected(connection) as client:
        job = client.cancel_job(job_id)
    output.document(job_json(job))
    output.text(f"job {job.job_id}: {job_state(job.state)}")


def engines(connection: Connection, features: bool) -> None:
    """Lists engines, or with ``features`` what each can do."""
    output = connection.output
    with connected(connection) as client:
        found = client.list_engines()
    found.sort(key=lambda item: (item.description.name, item.description.version, item.service))
    output.document([engine_json(item) for item in found])
    rows = [
        (
            f"{item.description.name}@{item.description.version}",
            item.service,
            _state(item),
            item.preferred,
            item.active_runs,
            ", ".join(device.name for device in item.devices),
            item.description.unavailable_reason,
        )
        for item in found
    ]
    header = ("engine", "service", "state", "preferred", "runs", "devices", "reason")
    output.table("", header, rows, "llllrll")
    if features:
        for item in found:
            output.text()
            lines = [
                (feature.name, _SUPPORT.get(feature.support, "unsupported"), feature.note)
                for feature in sorted(item.description.features, key=lambda feature: feature.name)
            ]
            title = f"{item.description.name}@{item.description.version}"
            output.table(title, ("feature", "support", "note"), lines)


def job_json(job: coordinator_pb2.Job) -> dict[str, Any]:
    """A job with its runs as JSON values, without its document."""
    return {
        "job_id": job.job_id,
        "name": job.name,
        "state": job_state(job.state),
        "created": _time(job.create_time),
        "ended": _time(job.end_time) or None,
        "error": None
        if not job.HasField("error")
        else {
            "reason": error_reason(job.error.reason),
            "message": job.error.message,
            "field": job.error.field,
        },
        "verdict": verdict_name(job.verdict) or None,
        "remarks": [{"severity": item.severity, "text": item.text} for item in job.remarks],
        "runs": [
            {
                "run_id": record.run.run_id,
                "kind": run_purpose(record.run.kind, record.purpose),
                "engine": record.run.engine,
                "version": record.run.engine_version,
                "variant": record.variant,
                "repeat": record.repeat,
                "state": run_state(record.run.state),
                "error": record.run.error.message if record.run.HasField("error") else None,
                "members": [{"service": item.service, "ranks": item.ranks} for item in record.members],
                "notice": record.notice,
            }
            for record in job.runs
        ],
    }


def engine_json(item: coordinator_pb2.RegisteredEngine) -> dict[str, Any]:
    """An engine as JSON values."""
    description = item.description
    return {
        "engine": description.name,
        "version": description.version,
        "service": item.service,
        "state": _state(item),
        "preferred": item.preferred,
        "active_runs": item.active_runs,
        "unavailable_reason": description.unavailable_reason,
        "devices": [
            {
                "name": device.name,
                "model": device.model,
                "memory_bytes": device.memory_bytes,
                "driver": device.driver,
            }
            for device in item.devices
        ],
        "libraries": dict(description.libraries),
        "features": {
            feature.name: {"support": _SUPPORT.get(feature.support, "unsupported"), "note": feature.note}
            for feature in description.features
        },
    }


def _state(item: coordinator_pb2.RegisteredEngine) -> str:
    if item.description.unavailable_reason:
        return "unavailable"
    return "ready" if item.healthy else "no answer"


def _time(value: Timestamp) -> str:
    return moment(value.seconds, value.nanos) if value.seconds else ""
