"""A job file of the user: read, checked, its model file inlined, its data imported and sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from crosstrain.client import Client
from crosstrain.data import (
    DataCache,
    DatasetInfo,
    Finding,
    import_sources,
)
from crosstrain.data.message import dataset_message
from crosstrain.spec import (
    JobSpec,
    build_model,
    dump_document,
    learning_rates,
    parse_document,
    parse_entry,
    training_rows,
)
from crosstrain.spec.document import MAX_BYTES
from crosstrain_protos.v1 import data_pb2, run_pb2
from crosstrain_service.errors import CrosstrainError

from .failures import DocumentError
from .output import Output, printable

T = TypeVar("T")


@dataclass(frozen=True)
class JobFile:
    """A checked job file.

    ``text`` is what is sent: the file itself if ``verbatim``, else (where a model file was inlined or a
    field replaced) all of it written anew. ``model_source`` is the name of the model file, or empty.
    """

    path: Path
    text: str
    spec: JobSpec
    model_source: str = ""
    verbatim: bool = True

    @property
    def source(self) -> str:
        """The file as the user named it, for messages."""
        return str(self.path)

    def failed(self, error: CrosstrainError, remote: bool = False) -> DocumentError:
        """The error with the names of the files in front of its lines.

        Lines that the coordinator (``remote``) found are of the text that was sent to it.
        """
        return DocumentError(error, self.source, self.model_source, not remote or self.verbatim)

    def with_spec(self, **changes: Any) -> JobFile:
        """The same with some fields of the document replaced."""
        spec = self.spec.model_copy(update=changes)  # keeps the lines of the file
        text = dump_document(spec)
        parse_document(text)
        return JobFile(self.path, text, spec, self.model_source, verbatim=False)

    def with_engines(self, engines: Sequence[str], **changes: Any) -> JobFile:
        """The same for other engines, without what the document sets for engines that are left out; ``changes``
        are of more fields."""
        compiler = self.spec.execution.compiler
        if isinstance(compiler, dict):
            compiler = _kept(compiler, engines)
        execution = self.spec.execution.model_copy(update={"compiler": compiler})
        runs_of = _kept(self.spec.runs_of, engines)
        return self.with_spec(**{"engines": list(engines), "runs_of": runs_of, "execution": execution, **changes})


@dataclass(frozen=True)
class JobData:
    """The imported data of a job; ``findings`` are remarks about it."""

    train: DatasetInfo | None
    test: DatasetInfo | None
    findings: tuple[Finding, ...]
    cache: DataCache


def read_job(path: Path) -> JobFile:
    """Reads and checks a job file.

    Raises:
        DocumentError: with file, line and field of everything that is wrong.
        OSError: it cannot be read.
    """
    text = _read(path)
    try:
        model = parse_model_name(text)
        if model:
            return _with_model_file(path, text, model)
        return JobFile(path, text, parse_document(text))
    except CrosstrainError as error:
        raise DocumentError(error, str(path)) from None


def parse_model_name(text: str) -> str:
    """The model file that a document names; empty if it names none."""
    from crosstrain.spec.document import read_document

    value = read_document(text).values.get("model")
    is_file = isinstance(value, str) and value.endswith((".yaml", ".yml", ".json"))
    return str(value) if is_file else ""


def _with_model_file(path: Path, text: str, name: str) -> JobFile:
    from crosstrain.spec.document import read_document
    from crosstrain.spec.parse import validate

    model_path = path.parent / name
    document = read_document(text)
    try:
        model_text = _read(model_path)
    except OSError as error:
        raise DocumentError(
            CrosstrainError("INVALID_JOB", f"the model file cannot be read: {error.strerror}", "model"),
            str(path),
        ) from None
    try:
        model = read_document(model_text)
    except CrosstrainError as error:
        raise DocumentError(error, str(model_path)) from None
    document.values["model"] = model.values
    document.lines.update({("model", *inner): line for inner, line in model.lines.items()})
    try:
        spec = validate(document)
    except CrosstrainError as error:
        raise DocumentError(error, str(path), str(model_path)) from None
    return JobFile(path, dump_document(spec), spec, str(model_path), verbatim=False)


def _read(path: Path) -> str:
    with open(path, "rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        large = CrosstrainError("INVALID_JOB", f"the document is larger than {MAX_BYTES} bytes", "")
        raise DocumentError(large, str(path))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        wrong = CrosstrainError("INVALID_JOB", f"line {line}: not UTF-8 text", "")
        raise DocumentError(wrong, str(path)) from None


def _kept(settings: dict[str, T], engines: Sequence[str]) -> dict[str, T]:
    """Settings by engine that still belong to one; a name without brackets belongs to all its variants."""
    names = {*engines, *(parse_entry(engine).base for engine in engines)}
    return {engine: value for engine, value in settings.items() if engine in names}


def import_data(job: JobFile, output: Output) -> JobData:
    """Imports the data that a job file names, relative to the file.

    Raises:
        DataError: it cannot be used.
        DocumentError: the document names none.
    """
    section = job.spec.data
    cache = DataCache.default()
    options = section.import_options()
    train_path, test_path = (
        None if name is None else job.path.parent / Path(name).expanduser()
        for name in (section.train, section.test)
    )
    if train_path is None and test_path is None:
        missing = CrosstrainError("INVALID_JOB", "names no file, for example train: train.csv", "data")
        raise job.failed(missing)
    found = import_sources(train_path, test_path, options, cache)
    for finding in found.findings:
        output.note(f"{finding.severity}: {finding.message}")
    return JobData(found.train, found.test, found.findings, cache)


def check_plan(job: JobFile, data: JobData) -> int:
    """Builds network and schedule for the data, as the coordinator will; returns the number of steps.

    Raises:
        DocumentError: something does not fit, with its line.
    """
    info = data.train or data.test
    assert info is not None
    try:
        build_model(job.spec, info.input_shape, info.classes)
        if job.spec.task == "evaluate" or data.train is None:
            return 0
        return len(learning_rates(job.spec, training_rows(job.spec, data.train.samples)))
    except CrosstrainError as error:
        raise job.failed(error) from None


def remark(finding: Finding) -> run_pb2.LogLine:
    """A finding as it is kept with a job: one printable line."""
    text = " ".join(printable(finding.message).split())
    return run_pb2.LogLine(severity=finding.severity, text=text[:4000])


def send_data(client: Client, info: DatasetInfo | None, cache: DataCache) -> data_pb2.Dataset | None:
    """Stores the arrays of a data set at the coordinator, unless it has them."""
    if info is None:
        return None
    for digest in (info.pixels_digest, info.labels_digest):
        client.upload(cache.path(digest))
    return dataset_message(info)
