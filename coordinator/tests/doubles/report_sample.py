"""A made-up verdict with its data: every part of the report, in any number of engines and steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from crosstrain.report import CrossRow, Epoch, ReportData, RunData

LABELS = (
    "reference@1",
    "torch@2.13.0+cpu",
    "tensorflow@2.12.1",
    "keras-tensorflow@3.15.1",
    "keras-theano@2.3.1",
    "lasagne@0.1",
    "caffe@1.0.0",
)
NETWORK = ("conv1", "relu1", "pool1", "conv2", "relu2", "pool2", "dense1", "relu3", "dense2")
WRONG = "lasagne@0.1"


def sample_data(steps: int = 300, labels: tuple[str, ...] = LABELS) -> ReportData:
    """Runs whose losses part slowly; those of the last two engines are the same."""
    runs = [_run(index, label, steps) for index, label in enumerate(labels)]
    rows = tuple(
        CrossRow(owner, place, 92.1, 0.2593, 1000, int(owner != place) * (owner == WRONG), 0)
        for owner in labels
        for place in labels
    )
    return ReportData(
        job_name="mnist-cnn2",
        job_id="mnist-cnn2-20261129-163329-2fbd",
        state="succeeded",
        remarks=("note: 3 images occur twice",),
        runs=tuple(runs),
        cross=rows,
        document="name: mnist-cnn2\nmodel: cnn2\n",
    )


def _run(index: int, label: str, steps: int) -> RunData:
    engine, version = label.split("@")
    rng = np.random.default_rng(7)
    number = np.arange(steps)
    base = 2.3 * np.exp(-number / (steps / 4)) + 0.08 + 0.05 * rng.random(steps)
    own = np.random.default_rng(max(index, 1) if index < 6 else 5)
    drift = np.minimum(1e-7 * np.exp(number / (steps / 24)), 1e-2) * own.standard_normal(steps)
    losses = base if index == 0 else np.float32(base * (1 + drift)).astype(np.float64)
    compute = own.lognormal(np.log(0.004 * (1 + index)), 0.2, steps)
    compute[0] *= 20
    data = own.random(steps) * 5e-4
    epochs = max(1, min(5, steps // 60))
    facts = {
        "engine.name": engine,
        "engine.version": version,
        "maths.precision": "float32",
        "maths.tf32": "false",
        "threads.intra": "2" if label == WRONG else "1",
        "python.version": "3.7.17" if "theano" in label or label == WRONG else "3.11.7",
        "data.train.pixels_digest": "833a24865eb7de2a7741818e8ca0c73ad2c1b862dae662e91523f2465de5c971",
    }
    if engine == "torch":
        facts["library.onednn"] = "3.12.0"
    return RunData(
        run_id=f"run-{index}",
        label=label,
        engine=engine,
        version=version,
        state="succeeded",
        steps={
            "step": number,
            "loss": losses,
            "step_seconds": compute + data + 1e-4,
            "data_seconds": data,
            "copy_seconds": np.zeros(steps),
            "compute_seconds": compute,
            "sync_seconds": np.zeros(steps),
            "callback_seconds": np.full(steps, 5e-5),
            "samples": np.full(steps, 64),
        },
        epochs=tuple(Epoch(i, 1.0 / (i + 1), test_accuracy=90 + i + 0.1 * index) for i in range(epochs)),
        facts=facts,
        train_seconds=float(compute.sum()),
        test_accuracy=0.921,
        memory_peak_bytes=300_000_000 + 50_000_000 * index,
        memory_after_import_bytes=200_000_000 if index else None,
    )


def sample_verdict(data: ReportData, wrong: str = WRONG) -> dict[str, Any]:
    """A verdict in which one engine has a wrong gradient at pooling ties, and the others round."""
    engines = [_engine(run, wrong) for run in data.runs]
    bad = any(engine["verdict"] == "MISMATCH" for engine in engines)
    base = data.runs[0].steps["loss"]
    points = np.unique(np.linspace(0, len(base) - 1, 2000).astype(np.int64))
    return {
        "schema_version": 1,
        "job_id": data.job_id,
        "job_name": data.job_name,
        "model": "cnn2",
        "created": "2026-11-29T16:35:02Z",
        "semantics": "native",
        "precision": "float32",
        "task": "train",
        "verdict": "MISMATCH" if bad else "ROUNDING",
        "sentence": (
            f"{wrong} computes something else than the reference: the gradient of max-pooling where two inputs of a "
            "window are equal; the other engines differ by rounding only."
            if bad
            else "All engines computed the same training to within rounding."
        ),
        "next_steps": [
            "Set `semantics: canonical` to let the adapter restore parity, then run the job again."
        ]
        if bad
        else ["Nothing to do: differences between these curves are floating-point drift."],
        "exit_code": 1 if bad else 3,
        "reference": {"engine": "reference", "version": "1", "label": "reference@1"},
        "engines": engines,
        "pairs": [_pair(a, b) for i, a in enumerate(engines) for b in engines[i + 1 :]],
        "envelope": {
            "runs": 8,
            "engine": "torch@2.13.0+cpu",
            "steps": points.tolist(),
            "low": (base[points] * (1 - 0.004 * points / len(base))).tolist(),
            "high": (base[points] * (1 + 0.004 * points / len(base))).tolist(),
        },
        "could_not_compare": [
            {"what": "flip probe of caffe@1.0.0", "reason": "no parameters were kept before step 12"}
        ],
    }


def _engine(run: RunData, wrong: str) -> dict[str, Any]:
    bad = run.label == wrong
    layers = list(_layers(run, bad))
    failures = [row for row in layers if not row["holds"]]
    steps = len(run.steps["step"])
    worst = failures[0] if failures else max(layers, key=lambda row: row["ratio"])
    own = run.engine == "reference"
    return {
        "label": run.label,
        "engine": run.engine,
        "version": run.version,
        "run_id": run.run_id,
        "probe_run_id": f"{run.run_id}.probe",
        "verdict": "MISMATCH" if bad else "IDENTICAL" if own else "ROUNDING",
        "sentence": "The gradient of pool1 differs: it goes to every input of a window that ties."
        if bad
        else "Every local check holds.",
        "certificate": {
            "possible": True,
            "reason": "",
            "cases": ["start"],
            "steps": [0, 1, 2],
            "probe_batch_size": 16,
            "checks": 3 * len(layers),
            "failed": len(failures),
            "worst": [
                {
                    "kind": worst["direction"],
                    "subject": worst["subject"],
                    "case": "start",
                    "step": 0,
                    "ratio": worst["ratio"],
                }
            ],
            "layers": failures + [row for row in layers if row["holds"]],
            "first_failure": failures[0] if failures else None,
        },
        "causes": [_cause(failures[0])] if failures else [],
        "conventions": {"ties": 12, "zeros": 3450},
        "free_run": None
        if own
        else {
            "steps": steps,
            "steps_compared": steps,
            "departed_step": steps // 8,
            "horizon_step": steps // 3,
            "max_difference": 0.0082,
            "max_difference_step": steps - 5,
            "outside_envelope_share": 0.02,
            "rank_test": {
                "statistic": 5.0,
                "p_value": 0.41,
                "runs": 8,
                "smallest_p": 1 / 9,
                "conclusive": False,
            },
            "flip": {
                "step": steps // 9,
                "layer": "pool2",
                "count": 1,
                "decisions": 200704,
                "coordinates": [3, 12, 4, 4],
                "gap": 1e-6,
                "reference_gap": 1.2e-6,
                "bound": 4e-6,
                "ratio": 0.25,
                "sentence": f"At step {steps // 9} one of 200,704 windows of pool2 chose another pixel.",
            },
            "explained": True,
        },
        "repeats": {
            "runs": 3,
            "bitwise_equal": True,
            "max_difference": 0.0,
            "first_different_step": -1,
            "own_variance": 0.0,
            "cross_variance": 1e-9,
            "non_deterministic": False,
        },
        "accuracy": {
            "test_accuracy": 0.921,
            "tost": {
                "margin": 0.01,
                "p_value": None,
                "equivalent": None,
                "different": False,
                "mean_difference": 0.001,
                "seeds": 1,
                "needed_seeds": 6,
            },
        },
    }


def _layers(run: RunData, bad: bool) -> Any:
    rng = np.random.default_rng(len(run.label))
    checks = [("input", "input")]
    checks += [("forward", name) for name in NETWORK] + [("loss", "loss")]
    checks += [("backward", name) for name in reversed(NETWORK)]
    parameters = [f"{name}.{part}" for name in NETWORK if name[0] in "cd" for part in ("weight", "bias")]
    checks += [("gradient", name) for name in parameters] + [("update", name) for name in parameters]
    for direction, subject in checks:
        fails = bad and direction == "backward" and subject in ("pool1", "pool2")
        ratio = (
            8.4e3
            if fails
            else 0.0
            if run.engine == "reference" or direction == "input"
            else rng.random() * 0.9
        )
        yield {
            "case": "start",
            "layer": subject.split(".")[0],
            "direction": direction,
            "kind": direction,
            "subject": subject,
            "step": 1,
            "ratio": ratio,
            "holds": not fails,
            "coordinates": [3, 12, 4, 9],
            "found": 0.00123456789 if fails else 0.5,
            "expected": 0.0 if fails else 0.50000003,
            "bound": 1.4e-7,
            "count": 218 if fails else 0,
            "size": 50176,
            "note": "",
        }


def _cause(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "ids": ["pool.ties_all"],
        "title": "Pooling gradient goes to every tied input",
        "says": "Where several inputs of a pooling window are equal and largest, this framework sends the gradient to "
        "each of them; the others send it to one.",
        "found_in": "Theano with cuDNN off, Lasagne",
        "restore": "semantics: canonical, or replace MaxPool2DLayer by a layer whose gradient takes the first maximum.",
        "where": ["backward pool1", "backward pool2"],
        "case": "start",
        "step": 0,
        "ratio": 0.61,
        "unknown": False,
        "also": [],
        "worst": {name: row[name] for name in ("coordinates", "found", "expected", "bound")},
    }


def _pair(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    bad = "MISMATCH" in (a["verdict"], b["verdict"])
    return {
        "a": a["label"],
        "b": b["label"],
        "verdict": "MISMATCH" if bad else "ROUNDING",
        "sentence": "",
        "steps_compared": 300,
        "losses_equal": False,
        "first_different_step": 3,
        "max_abs_difference": 0.0082,
        "max_difference_step": 250,
        "departed_step": 30,
        "horizon_step": 100,
        "fact_differences": [{"name": "python.version", "a": "3.7.17", "b": "3.11.7"}],
    }
