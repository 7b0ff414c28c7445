"""``crosstrain import`` and ``crosstrain export``: models of other tools, in and out."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from crosstrain.exchange import keras_export, torch_export
from crosstrain.exchange.caffe import import_caffe, job_text, model_text
from crosstrain.exchange.caffe_export import export_caffe
from crosstrain.exchange.exporting import Export
from crosstrain.spec import JobSpec, build_model
from crosstrain.spec.document import Document, read_document
from crosstrain.spec.parse import validate
from crosstrain_service import model as plain
from crosstrain_service import weights as canonical
from crosstrain_service.errors import CrosstrainError

from .commands.exchange import ExportRequest
from .exits import USAGE, CommandError
from .failures import DocumentError
from .jobfile import read_job
from .output import Output


def from_caffe(
    output: Output,
    net: Path,
    solver: Path,
    weights: Path | None,
    folder: Path,
    input_shape: str,
    ignore_rates: bool,
) -> None:
    """Writes model.yaml, job.yaml and, with a caffemodel, weights.safetensors into ``folder``."""
    shape = parse_shape(input_shape) if input_shape else None
    data = None if weights is None else _read(weights)
    found = import_caffe(_text(net), _text(solver), data, input_shape=shape, ignore_rates=ignore_rates)
    files = {"model.yaml": model_text(found.model).encode()}
    digest = ""
    if found.weights is not None:
        files["weights.safetensors"] = canonical.to_bytes(found.weights, {"model": found.model.name})
        digest = hashlib.sha256(files["weights.safetensors"]).hexdigest()
    files["job.yaml"] = job_text(found, "model.yaml", digest).encode()
    _write(folder, files)
    output.document(
        {
            "folder": str(folder),
            "files": sorted(files),
            "layers": [layer.name for layer in found.model.layers],
            "weights_digest": digest,
            "remarks": list(found.remarks),
        }
    )
    for remark in found.remarks:
        output.note(f"note: {remark}")
    output.text(f"{len(found.model.layers)} layers; {', '.join(sorted(files))} are in {folder}")
    output.text("Set the data of job.yaml, then 'crosstrain run' it.")


def to_caffe(output: Output, job: Path, weights: Path, folder: Path, input_shape: str, classes: int) -> None:
    """Writes deploy.prototxt and weights.caffemodel into ``folder``."""
    model = build_model(read_job(job).spec, parse_shape(input_shape), classes)
    parameters, statistics = canonical.check_weights(_arrays(weights), model)
    text, data = export_caffe(model, {**parameters, **statistics})
    files = {"deploy.prototxt": text.encode(), "weights.caffemodel": data}
    _write(folder, files)
    output.document({"folder": str(folder), "files": sorted(files)})
    output.text(f"{', '.join(sorted(files))} are in {folder}")


def to_torch(output: Output, request: ExportRequest) -> None:
    """Writes network.py and weights.safetensors (a state_dict) into the folder."""
    _to_python(output, request, torch_export.export_torch, torch_export.SOURCE, torch_export.WEIGHTS)


def to_keras(output: Output, request: ExportRequest) -> None:
    """Writes network.py and weights.npz into the folder."""
    _to_python(output, request, keras_export.export_keras, keras_export.SOURCE, keras_export.WEIGHTS)


def _to_python(
    output: Output,
    request: ExportRequest,
    export: Callable[[plain.Model, dict[str, np.ndarray], float | None], Export],
    source: str,
    weights: str,
) -> None:
    spec = _spec(request.model)
    model = build_model(spec, parse_shape(request.input_shape), request.classes)
    divisor = spec.data.divisor if request.divisor is None else request.divisor
    if divisor is not None and not (math.isfinite(divisor) and divisor > 0):
        raise CommandError(f"--divisor must be a positive number, not {divisor:g}", USAGE)
    written = export(model, _arrays(request.weights), divisor)
    files = {source: written.source.encode(), weights: written.weights}
    _write(request.folder, files)
    output.document({"folder": str(request.folder), "files": sorted(files)})
    output.text(f"{', '.join(sorted(files))} are in {request.folder}; load() in {source} gives the trained network")


def _spec(path: Path) -> JobSpec:
    """A job file, or a model file (name and layers) as part of one."""
    try:
        document = read_document(_text(path))
        if "layers" not in document.values:
            return read_job(path).spec
        lines = {("model", *inner): line for inner, line in document.lines.items()}
        others = {"name": "export", "task": "evaluate", "weights": ["0" * 64], "engines": ["reference"]}
        return validate(Document({**others, "model": document.values}, lines))
    except DocumentError:
        raise
    except CrosstrainError as error:
        raise DocumentError(error, str(path)) from None


def parse_shape(text: str) -> tuple[int, ...]:
    """A shape such as ``1,28,28``. Raises CommandError."""
    parts = text.split(",")
    if len(parts) not in (2, 3) or not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise CommandError(f"--input-shape {text!r} is not like 1,28,28", USAGE)
    return tuple(int(part) for part in parts)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}") from None


def _arrays(path: Path) -> dict[str, np.ndarray]:
    return canonical.from_bytes(_read(path))[0]


def _text(path: Path) -> str:
    try:
        return _read(path).decode("utf-8")
    except UnicodeDecodeError:
        raise CommandError(f"{path} is no text file in UTF-8") from None


def _write(folder: Path, files: dict[str, bytes]) -> None:
    present = [name for name in files if (folder / name).exists()]
    if present:
        raise CommandError(f"{folder / present[0]} is there already; choose another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (folder / name).write_bytes(data)
    except OSError as error:
        raise CommandError(f"{folder} cannot be written: {error.strerror}") from None
