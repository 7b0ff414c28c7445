"""The three dashboards as data. Every query is evaluated against a real Prometheus in tests/monitoring."""

from __future__ import annotations

from collections.abc import Callable

from panels import Board, Panel, Query, Variable

#: Written below every panel whose numbers exist only where a GPU is.
NEEDS_GPU = "Needs a GPU: empty where there is none."
NEEDS_DCGM = "Needs a GPU and NVIDIA's dcgm-exporter: empty where there is none."
_ENGINE = "{{engine}}@{{version}}"
_RUN = "{{run}}"


def _mean(metric: str, by: str, where: str = "", window: str = "$__rate_interval") -> str:
    """Mean of a histogram or summary over a window."""
    chosen = f"{{{where}}}" if where else ""
    return (
        f"sum by ({by}) (rate({metric}_sum{chosen}[{window}])) "
        f"/ (sum by ({by}) (rate({metric}_count{chosen}[{window}])) > 0)"
    )


def _quantile(share: float, by: str, where: str = "") -> str:
    chosen = f"{{{where}}}" if where else ""
    metric = "crosstrain_step_duration_seconds_bucket"
    return f"histogram_quantile({share}, sum by ({by}, le) (rate({metric}{chosen}[$__rate_interval])))"


# A run's id begins with the id of its job.
_JOB = 'run=~"$job_id[.].*"'

LIVE_JOB = Board(
    uid="crosstrain-live-job",
    title="Crosstrain: live job",
    description="Loss curves, accuracy and step time of all engines of a job over one another.",
    variables=(Variable("job_id", "Job", "label_values(crosstrain_coordinator_run_info, job_id)"),),
    rows={
        "Job": (
            Panel("Runs not ended", (Query('count(crosstrain_coordinator_run_info{job_id="$job_id"})'),),
                  kind="number", width=4, height=4),
            Panel("Waiting for a service", (Query("sum(crosstrain_coordinator_queue_runs)"),),
                  kind="number", width=4, height=4),
            Panel("Steps done", (Query(f"crosstrain_run_steps{{{_JOB}}}", _ENGINE),),
                  kind="number", width=16, height=4),
        ),
        "What is learnt": (
            Panel("Loss", (Query(f"crosstrain_run_loss{{{_JOB}}}", _RUN),), width=24, height=10,
                  description="Mean loss over the batch of the newest step. Runs of one device follow one another; "
                              "those of several devices lie over one another."),
            Panel("Test accuracy", (Query(f"crosstrain_run_test_accuracy_ratio{{{_JOB}}}", _RUN),), "percentunit"),
            Panel("Loss over epochs", (
                Query(f"crosstrain_run_epoch_train_loss{{{_JOB}}}", _RUN + " training"),
                Query(f"crosstrain_run_test_loss{{{_JOB}}}", _RUN + " test"))),
            Panel("Learning rate", (Query(f"crosstrain_run_learning_rate{{{_JOB}}}", _RUN),)),
            Panel("Steps done", (Query(f"crosstrain_run_steps{{{_JOB}}}", _RUN),)),
        ),
        "How fast": (
            Panel("Step time, mean", (
                Query(_mean("crosstrain_step_duration_seconds", "engine, version"), _ENGINE),), "s"),
            Panel("Step time, 95th percentile", (Query(_quantile(0.95, "engine, version"), _ENGINE),), "s"),
            Panel("Where a step's time goes", (Query(
                "sum by (engine, version, phase) (rate(crosstrain_step_phase_duration_seconds_sum[$__rate_interval]))"
                " / ignoring (phase) group_left () "
                "(sum by (engine, version) (rate(crosstrain_step_phase_duration_seconds_sum[$__rate_interval])) > 0)",
                _ENGINE + " {{phase}}"),), "percentunit"),
            Panel("Samples per second", (Query(
                "sum by (engine, version) (rate(crosstrain_step_samples_total[$__rate_interval]))", _ENGINE),)),
        ),
        "With how much": (
            Panel("Memory", (Query(f"crosstrain_run_memory_bytes{{{_JOB}}}", _RUN),
                             Query(f"crosstrain_run_memory_peak_bytes{{{_JOB}}}", _RUN + " peak")), "bytes"),
            Panel("Processor cores", (Query(f"deriv(crosstrain_run_cpu_seconds{{{_JOB}}}[$__rate_interval])", _RUN),)),
            Panel("GPU utilisation", (Query(f"crosstrain_run_gpu_utilization_ratio{{{_JOB}}}", _RUN),), "percentunit",
                  description=NEEDS_GPU),
            Panel("GPU memory, peak", (Query(f"crosstrain_run_gpu_memory_peak_bytes{{{_JOB}}}", _RUN),), "bytes",
                  description=NEEDS_GPU),
        ),
    },
)  # fmt: skip

_A, _B = 'engine="$engine", version="$version_a"', 'engine="$engine", version="$version_b"'
_STEP = "crosstrain_step_duration_seconds"


def _ratio(metric: str) -> str:
    return f"({_mean(metric, 'engine', _B)}) / ({_mean(metric, 'engine', _A)})"


def _both(make: Callable[[str], str], legend: str) -> tuple[Query, ...]:
    """A query for each version. (A version may hold "+", which means something else in a regular expression.)"""
    return Query(make(_A), f"A {legend}"), Query(make(_B), f"B {legend}")


VERSIONS = Board(
    uid="crosstrain-framework-versions",
    title="Crosstrain: framework versions",
    description="Two versions of one framework beside one another, for instance before and after an image swap.",
    variables=(
        Variable("engine", "Engine", "label_values(crosstrain_step_duration_seconds_count, engine)"),
        Variable("version_a", "Version A",
                 'label_values(crosstrain_step_duration_seconds_count{engine="$engine"}, version)'),
        Variable("version_b", "Version B",
                 'label_values(crosstrain_step_duration_seconds_count{engine="$engine"}, version)'),
    ),
    rows={
        "Verdict on speed": (
            Panel("Step time of B over A", (Query(_ratio(_STEP)),), kind="number", width=8, height=5,
                  description="Of steps within the same window; the job's report has the paired ratio with its "
                              "confidence interval."),
            Panel("Step time over the range, A and B", (
                Query(_mean(_STEP, "version", _A, "$__range"), "A {{version}}"),
                Query(_mean(_STEP, "version", _B, "$__range"), "B {{version}}")), "s", "number", 8, 5),
            Panel("First step over the range, A and B", (
                Query(_mean("crosstrain_step_first_duration_seconds", "version", _A, "$__range"), "A {{version}}"),
                Query(_mean("crosstrain_step_first_duration_seconds", "version", _B, "$__range"), "B {{version}}")),
                "s", "number", 8, 5),
        ),
        "Steps": (
            Panel("Step time, mean", _both(lambda where: _mean(_STEP, "version", where), "{{version}}"), "s"),
            Panel("Step time, median and 95th percentile", (
                *_both(lambda where: _quantile(0.5, "version", where), "{{version}} median"),
                *_both(lambda where: _quantile(0.95, "version", where), "{{version}} 95 %")), "s"),
            Panel("Phases, seconds per step", _both(lambda where: _mean(
                "crosstrain_step_phase_duration_seconds", "version, phase", where), "{{version}} {{phase}}"), "s"),
            Panel("Samples per second", _both(
                lambda where: f"sum by (version) (rate(crosstrain_step_samples_total{{{where}}}[$__rate_interval]))",
                "{{version}}")),
        ),
        "Around the steps": (
            Panel("Start: import and build", _both(lambda where: _mean(
                "crosstrain_run_setup_duration_seconds", "version, stage", where, "$__range"),
                "{{version}} {{stage}}"), "s"),
            Panel("Memory, peak and after import", (
                *_both(lambda where: f"max by (version) (crosstrain_run_memory_peak_bytes{{{where}}})",
                       "{{version}} peak"),
                *_both(lambda where: f"max by (version) (crosstrain_run_memory_after_import_bytes{{{where}}})",
                       "{{version}} after import")), "bytes"),
            Panel("Runs by how they ended", _both(
                lambda where: f"sum by (version, state) (increase(crosstrain_run_ended_total{{{where}}}[$__range]))",
                "{{version}} {{state}}")),
            Panel("GPU memory, peak", _both(
                lambda where: f"max by (version) (crosstrain_run_gpu_memory_peak_bytes{{{where}}})", "{{version}}"),
                "bytes", description=NEEDS_GPU),
        ),
        "What is learnt": (
            Panel("Loss", _both(lambda where: f"crosstrain_run_loss{{{where}}}", _RUN)),
            Panel("Test accuracy", _both(
                lambda where: f"crosstrain_run_test_accuracy_ratio{{{where}}}", _RUN), "percentunit"),
        ),
    },
)  # fmt: skip

HEALTH = Board(
    uid="crosstrain-health",
    title="Crosstrain: GPU and service health",
    description="Coordinator, services, stores and GPUs.",
    variables=(),
    rows={
        "At a glance": (
            Panel("Coordinators", (Query("count(crosstrain_coordinator_info)"),), kind="number", width=4, height=4),
            Panel("Job store answers", (Query("min(crosstrain_store_up)"),), kind="number", width=4, height=4),
            Panel("Healthy services", (Query("sum(crosstrain_coordinator_service_healthy)"),), kind="number", width=4,
                  height=4),
            Panel("Engines offered", (Query("count(crosstrain_coordinator_engine_info)"),), kind="number", width=4,
                  height=4),
            Panel("Jobs running", (Query('sum(crosstrain_coordinator_jobs{state="running"})'),), kind="number",
                  width=4, height=4),
            Panel("Runs waiting", (Query("sum(crosstrain_coordinator_queue_runs)"),), kind="number", width=4,
                  height=4),
        ),
        "Work": (
            Panel("Runs at services", (Query(
                "sum by (engine, version, state) (crosstrain_service_active_runs)", _ENGINE + " {{state}}"),)),
            Panel("Runs that ended, per hour", (Query(
                "sum by (engine, version, state) (rate(crosstrain_run_ended_total[$__rate_interval])) * 3600",
                _ENGINE + " {{state}}"),)),
            Panel("Restarts of processes, per hour", (Query(
                "sum by (engine, version) (rate(crosstrain_run_restarts_total[$__rate_interval])) * 3600",
                _ENGINE),)),
            Panel("Lost ranks, per hour", (Query(
                "sum by (engine, version) (rate(crosstrain_run_ranks_lost_total[$__rate_interval])) * 3600",
                _ENGINE),)),
            Panel("Fan-out, 95th percentile", (Query(
                "histogram_quantile(0.95, sum by (service, le) "
                "(rate(crosstrain_coordinator_fanout_duration_seconds_bucket[$__range])))", "{{service}}"),), "s"),
            Panel("Verdicts over the range", (Query(
                "sum by (verdict) (increase(crosstrain_coordinator_verdicts_total[$__range]))", "{{verdict}}"),)),
            Panel("Waiting for a device", (Query("sum by (instance, device) (crosstrain_service_queue_runs)",
                                                 "{{instance}} {{device}}"),)),
        ),
        "Processes": (
            Panel("Memory", (Query('process_resident_memory_bytes and on (instance) '
                                   '(crosstrain_service_info or crosstrain_coordinator_info)', "{{instance}}"),),
                  "bytes"),
            Panel("Processor cores", (Query('rate(process_cpu_seconds_total[$__rate_interval]) and on (instance) '
                                            '(crosstrain_service_info or crosstrain_coordinator_info)',
                                            "{{instance}}"),)),
            Panel("Open streams", (Query("crosstrain_service_watchers", "{{instance}}"),
                                   Query("crosstrain_coordinator_watchers", "{{instance}} coordinator"))),
            Panel("Registered", (Query("crosstrain_service_registered", "{{instance}}"),)),
        ),
        "Stores": (
            Panel("Free share", (Query("crosstrain_store_free_bytes / crosstrain_store_size_bytes",
                                       "{{instance}} {{store}}"),), "percentunit"),
            Panel("Spools", (Query("crosstrain_spool_size_bytes", "{{instance}}"),), "bytes"),
            Panel("Events stored per second", (Query("rate(crosstrain_coordinator_events_total[$__rate_interval])",
                                                     "{{instance}}"),)),
            Panel("Checkpoints, seconds each", (Query(
                _mean("crosstrain_run_checkpoint_duration_seconds", "engine, version", "", "$__range"), _ENGINE),),
                "s"),
            Panel("Time to read the job store", (Query("crosstrain_store_read_duration_seconds", "{{instance}}"),),
                  "s"),
        ),
        "GPU": (
            Panel("Utilisation by NVML", (Query("crosstrain_gpu_utilization_ratio", "{{instance}} {{device}}"),),
                  "percentunit", description=NEEDS_GPU),
            Panel("Memory by NVML", (Query("crosstrain_gpu_memory_used_bytes", "{{instance}} {{device}}"),
                                     Query("crosstrain_gpu_memory_size_bytes", "{{instance}} {{device}} size")),
                  "bytes", description=NEEDS_GPU),
            Panel("SM activity", (Query("DCGM_FI_PROF_SM_ACTIVE", "{{Hostname}} GPU {{gpu}}"),), "percentunit",
                  description=NEEDS_DCGM),
            Panel("Tensor core activity", (Query("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "{{Hostname}} GPU {{gpu}}"),),
                  "percentunit", description=NEEDS_DCGM),
            Panel("Memory bandwidth in use", (Query("DCGM_FI_PROF_DRAM_ACTIVE", "{{Hostname}} GPU {{gpu}}"),),
                  "percentunit", description=NEEDS_DCGM),
            Panel("Power", (Query("DCGM_FI_DEV_POWER_USAGE", "{{Hostname}} GPU {{gpu}}"),), "watt",
                  description=NEEDS_DCGM),
        ),
    },
)  # fmt: skip

BOARDS = (LIVE_JOB, VERSIONS, HEALTH)
