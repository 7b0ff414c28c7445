"""Text to :class:`JobSpec` and back; every error names line, field, value and what is allowed."""

from __future__ import annotations

import difflib
import io
import types
import typing
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML

from .base import WRONG
from .document import Document, Path, describe, field_name, line_of, read_document
from .errors import SpecError, Violation
from .job import JobSpec

_TYPES = {
    "int_type": "an integer",
    "float_type": "a number",
    "string_type": "a text",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "finite_number": "a finite number",
}
_PATTERNS = {
    r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$": "must be 1 to 128 letters, digits, '-', '_' or '.'",
    r"^[A-Za-z][A-Za-z0-9_]{0,63}$": "must be a letter followed by at most 63 letters, digits or '_'",
    r"^[0-9a-f]{64}$": "must be a SHA-256 digest of 64 lower-case hex digits",
}


def parse_document(text: str) -> JobSpec:
    """Reads a job document, YAML or JSON.

    Raises:
        SpecError: with one violation per wrong value.
    """
    return validate(read_document(text))


def validate(document: Document) -> JobSpec:
    """Checks values that were read already; raises as :func:`parse_document` does."""
    try:
        return JobSpec(document.lines, **_text_keys(document))
    except ValidationError as error:
        raise SpecError(_violations(error, document)) from None


def dump_document(spec: JobSpec) -> str:
    """The document with every default filled in, as YAML; reading it gives the same job.

    What is left out has no value: no test data, no early stopping, a constant that is the
    framework's own (native semantics only).
    """
    values = resolved(spec).model_dump(exclude_none=True)
    stream = io.StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 110
    yaml.dump(values, stream)
    return stream.getvalue()


def resolved(spec: JobSpec) -> JobSpec:
    """The same job with every constant and setting that will be sent."""
    training = spec.training
    if training.optimizer is not None:
        training = training.model_copy(update={"optimizer": training.optimizer.resolved(spec.native)})
    execution = spec.execution.model_copy(update={"deterministic": spec.deterministic})
    verdict = spec.verdict if spec.task == "evaluate" else spec.verdict.model_copy(update={"judge": spec.judged})
    parallel = spec.parallel
    if spec.devices.count > 1:
        parallel = parallel.with_settings({"data": spec.devices.count, "min_data": parallel.min_data})
    changed = {"training": training, "execution": execution, "verdict": verdict, "parallel": parallel}
    return spec.model_copy(update=changed)


def _text_keys(document: Document) -> dict[str, Any]:
    return {str(name): value for name, value in document.values.items()}


def _violations(error: ValidationError, document: Document) -> list[Violation]:
    found: dict[Path, list[tuple[str, bool]]] = {}
    for detail in error.errors(include_url=False):
        path = _path(detail, document.values)
        alternative = detail["type"] in _TYPES or detail["type"] == "literal_error"
        found.setdefault(path, []).append((_message(detail, path), alternative))
    result = []
    for path, messages in found.items():
        # The alternatives of a union fail each on its own. One that took the list or mapping and
        # failed inside says more than the others, which wanted another type.
        inner = any(len(other) > len(path) and other[: len(path)] == path for other in found)
        kept = [text for text, alternative in messages if not (alternative and inner)]
        if len(messages) > 1 and all(alternative for _, alternative in messages):
            kept = [_join(kept)] if kept else []
        line = line_of(document.lines, path)
        result += [Violation(field_name(path), line, text) for text in dict.fromkeys(kept)]
    return result


def _join(messages: list[str]) -> str:
    """Merges "must be X, not V" and "must be Y, not V" into one message."""
    parts = [text.removeprefix("must be ").partition(", not ") for text in messages]
    allowed = list(dict.fromkeys(wanted for wanted, _, _ in parts))
    return f"must be {' or '.join(allowed)}, not {parts[0][2]}"


def _path(detail: ErrorDetails, values: Any) -> Path:
    """Path in the document; what pydantic adds for the alternatives of a union is left out."""
    if detail["type"] == WRONG:
        return tuple(detail["ctx"]["path"])
    path: list[str | int] = []
    loc = detail["loc"]
    for index, part in enumerate(loc):
        if _holds(values, part):
            values = values[part]
        elif not (index == len(loc) - 1 and detail["type"] == "missing"):
            continue
        path.append(part)
    return tuple(path)


def _holds(values: Any, part: str | int) -> bool:
    if isinstance(values, list):
        return isinstance(part, int) and part < len(values)
    return isinstance(values, dict) and part in values


def _message(detail: ErrorDetails, path: Path) -> str:
    kind = detail["type"]
    context = detail.get("ctx", {})
    value = describe(detail["input"])
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        return _unknown(path)
    if kind in _TYPES:
        return f"must be {_TYPES[kind]}, not {value}"
    if kind == "literal_error":
        return f"must be {context['expected']}, not {value}"
    bounds = {
        "greater_than_equal": ("at least", "ge"),
        "greater_than": ("greater than", "gt"),
        "less_than_equal": ("at most", "le"),
        "less_than": ("less than", "lt"),
    }
    if kind in bounds:
        text, key = bounds[kind]
        bound = context[key]
        return f"must be {text} {bound if isinstance(bound, int) else f'{bound:g}'}, not {value}"
    if kind == "string_pattern_mismatch":
        return f"{_PATTERNS[context['pattern']]}, not {value}"
    if kind in ("too_short", "too_long"):
        short = kind == "too_short"
        limit = f"at least {context['min_length']}" if short else f"at most {context['max_length']}"
        return f"must hold {limit} values, not {context['actual_length']}"
    if kind == WRONG:
        return str(context["message"])
    if kind == "value_error":
        return str(context["error"])
    return f"{detail['msg']}, not {value}"


def _unknown(path: Path) -> str:
    """Says which fields exist where an unknown one was found."""
    known = _fields_at(path[:-1])
    given = str(path[-1]).lower()
    close = difflib.get_close_matches(given, known, n=1, cutoff=0.6)
    close = close or [name for name in known if len(given) > 2 and name.startswith(given)]
    if close:
        return f"unknown field; did you mean {close[0]}?"
    return f"unknown field; known are {', '.join(known)}" if known else "unknown field"


def _fields_at(path: Path) -> list[str]:
    models: list[type[BaseModel]] = [JobSpec]
    for part in path:
        if isinstance(part, str):
            fields = [model.model_fields[part].annotation for model in models if part in model.model_fields]
            models = [model for annotation in fields for model in _models(annotation)]
    return [name for model in models for name in model.model_fields]


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Parts of the document that an annotation allows, through lists, unions and Annotated."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [model for inner in typing.get_args(annotation) for model in _models(inner)]
