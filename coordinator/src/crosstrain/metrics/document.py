"""Writes docs/metrics.md: ``python -m crosstrain.metrics.document > docs/metrics.md``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from crosstrain_service import run_metrics, service_metrics
from crosstrain_service.metrics import Metric

from .definitions import METRICS, VERDICTS

_HEAD = """# Metrics

The coordinator and every service serve `/metrics` for Prometheus over HTTP, on the host of `--listen`.
`--metrics-port` takes a port, `auto` for any free one (`--metrics-port-file` says which), or `0` for none. Without it
the port is 9464; if that is in use, the process logs a warning and has no metrics. A port that was asked for and
cannot be bound refuses the start with one line. The images and manifests ask for 9464. The page has no login: keep it
inside the cluster (see [deployment.md](deployment.md)).

Names are `crosstrain_<subsystem>_<noun>_<unit>[_total]` in base units. Labels come from closed sets; the label `run`
is on gauges only, and these disappear with the first scrape after the one that has shown their last values. Counters
begin at 0 when a process starts. A summary has `_sum` and `_count`, a histogram `_bucket` as well. Both kinds of
process also have the standard `process_*` metrics (resident memory, processor time, open files, start time).

Nothing is measured between scrapes: a service counts the events of its runs when it reads them from their spools,
which it does for whoever watches a run, and at a scrape. `crosstrain up` lists the addresses of its processes in
`metrics-targets.json` in its state folder, in the form of Prometheus's `file_sd_configs`.

Streaming multiprocessor (SM) activity is not among these: NVIDIA's dcgm-exporter has it, as `DCGM_FI_PROF_SM_ACTIVE`.

This page is generated from the code by `python -m crosstrain.metrics.document`; a test compares them.
"""


def page() -> str:
    """The whole page."""
    parts = [
        _HEAD,
        _table("Services", service_metrics.METRICS),
        _table("Services: work done", run_metrics.METRICS),
        _table("Services: runs at work", run_metrics.GAUGES),
        _table("Coordinator", METRICS),
        f"Verdicts are {', '.join(f'`{verdict}`' for verdict in VERDICTS)}.\n",
        "## Buckets\n\n" + "\n".join(_buckets((*run_metrics.METRICS, *METRICS))) + "\n",
    ]
    return "\n".join(parts)


def _table(title: str, metrics: Iterable[Metric]) -> str:
    rows = [
        f"| `{metric.name}` | {metric.kind} | {', '.join(f'`{label}`' for label in metric.labels)} | {metric.help} |"
        for metric in metrics
    ]
    return "\n".join([f"## {title}\n", "| name | kind | labels | meaning |", "|---|---|---|---|", *rows, ""])


def _buckets(metrics: Iterable[Metric]) -> Iterator[str]:
    for metric in metrics:
        if metric.buckets:
            yield f"- `{metric.name}`: {', '.join(f'{bound:g}' for bound in metric.buckets)} and infinity"


if __name__ == "__main__":
    sys.stdout.write(page())
