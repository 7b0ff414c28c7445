"""What the coordinator measures."""

from __future__ import annotations

from crosstrain_service.metrics import COUNTER, GAUGE, HISTOGRAM, Metric

#: Verdicts on a pair of engines, and "other" for what is none of them.
VERDICTS = ("identical", "rounding", "mismatch", "inconclusive", "other")
FANOUT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)

METRICS = (
    Metric("crosstrain_coordinator_info", GAUGE, "Always 1; version of the coordinator.", ("coordinator_version",)),
    Metric("crosstrain_coordinator_jobs", GAUGE, "Jobs in the store by state.", ("state",)),
    Metric("crosstrain_coordinator_runs", GAUGE, "Runs in the store by engine, version, kind and state.",
           ("engine", "version", "kind", "state")),
    Metric("crosstrain_coordinator_queue_runs", GAUGE,
           "Runs of unfinished jobs that no service has been asked for yet.", ("service",)),
    Metric("crosstrain_coordinator_run_info", GAUGE,
           "Always 1; which job an unfinished run belongs to. Disappears when the run ends.",
           ("run", "job_id", "engine", "version", "service")),
    Metric("crosstrain_coordinator_events_total", COUNTER, "Events of jobs in the store."),
    Metric("crosstrain_coordinator_fanout_duration_seconds", HISTOGRAM,
           "Time to hand a run to its service, artifacts that it lacks included.", ("service",), FANOUT_BUCKETS),
    Metric("crosstrain_coordinator_verdicts_total", COUNTER, "Verdicts on pairs of engines.", ("verdict",)),
    Metric("crosstrain_coordinator_service_healthy", GAUGE,
           "Whether a registered service answers (1) or not (0); a registration that runs out disappears.",
           ("service",)),
    Metric("crosstrain_coordinator_engine_info", GAUGE,
           "Always 1; an engine of a registered service. preferred says that its bare name means this one.",
           ("service", "engine", "version", "preferred")),
    Metric("crosstrain_coordinator_watchers", GAUGE, "Open streams of WatchJob."),
    Metric("crosstrain_store_up", GAUGE, "Whether the job store answered this scrape (1) or not (0)."),
    Metric("crosstrain_store_read_duration_seconds", GAUGE, "Time that this scrape's questions to the job store took."),
    Metric("crosstrain_store_free_bytes", GAUGE,
           "Room left on the file system of a store: state, or artifacts where they are a folder.", ("store",)),
    Metric("crosstrain_store_size_bytes", GAUGE, "Size of the file system of a store.", ("store",)),
)  # fmt: skip
