"""``crosstrain import`` and ``crosstrain export``: models of other tools, in and out."""

from __future__ import annotations

import hashlib
from pathlib import Path

from crosstrain.exchange.caffe import import_caffe, job_text, model_text
from crosstrain.exchange.caffe_export import export_caffe
from crosstrain.spec import build_model
from crosstrain_service import weights as canonical

from .exits import USAGE, CommandError
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
    arrays, _ = canonical.from_bytes(_read(weights))
    parameters, statistics = canonical.check_weights(arrays, model)
    text, data = export_caffe(model, {**parameters, **statistics})
    files = {"deploy.prototxt": text.encode(), "weights.caffemodel": data}
    _write(folder, files)
    output.document({"folder": str(folder), "files": sorted(files)})
    output.text(f"{', '.join(sorted(files))} are in {folder}")


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


def _text(path: Path) -> str:
    try:
        return _read(path).decode("utf-8")
    except UnicodeDecodeError:
        raise CommandError(f"{path} is no text file in UTF-8") from None


def _write(folder: Path, files: dict[str, bytes]) -> None:
    present = [name for name in files if (folder / name).exists()]
    if present:
        raise CommandError(f"{folder / present[0]} is there already; choose another folder with --output")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (folder / name).write_bytes(data)
    except OSError as error:
        raise CommandError(f"{folder} cannot be written: {error.strerror}") from None
