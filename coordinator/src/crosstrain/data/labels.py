"""From the integers of a label column to classes 0..K-1, or a refusal that says what to declare."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import DataError, listing
from .info import Finding, ImportOptions

MAX_CLASSES = 1_000_000


@dataclass(frozen=True)
class Classes:
    """Labels as class numbers.

    Attributes:
        labels: (N,) int64 in 0..K-1.
        values: the integer that stood for each class in the source.
        counts: samples of each class.
    """

    labels: NDArray[np.int64]
    values: tuple[int, ...]
    counts: tuple[int, ...]
    warnings: tuple[Finding, ...]


def number_classes(raw: NDArray[np.int64], options: ImportOptions, name: str) -> Classes:
    """Apply the label rule of ``options`` to the labels (N,) of the source called ``name``.

    Without a declaration the labels must be exactly 0..K-1 with every class present. With ``classes``
    some may be absent. Nothing is renumbered unless ``labels: map`` or ``label_values`` asks for it.

    Raises:
        DataError: ``data.labels`` or ``data.classes``; the message lists what was found.
    """
    found, inverse, counts = np.unique(raw, return_inverse=True, return_counts=True)
    values = _class_values([int(value) for value in found], options, name)
    position = {value: index for index, value in enumerate(values)}
    to_class = np.array([position[int(value)] for value in found], dtype=np.int64)
    per_class = np.zeros(len(values), dtype=np.int64)
    per_class[to_class] = counts
    labels = to_class[inverse]
    remarks = _remarks(labels, per_class, values, name)
    return Classes(labels, values, tuple(int(n) for n in per_class), tuple(remarks))


def _class_values(found: list[int], options: ImportOptions, name: str) -> tuple[int, ...]:
    if options.label_values is not None:
        strange = [value for value in found if value not in set(options.label_values)]
        if strange:
            known = listing(list(options.label_values))
            message = f"{name} has labels that the training data lacks: {listing(strange)}; known are {known}"
            raise DataError("data.labels", message, value=str(strange[0]))
        return options.label_values
    if options.labels == "map":
        if options.classes not in (None, len(found)):
            message = f"{options.classes} classes are declared, {name} has {len(found)}: {listing(found)}"
            raise DataError("data.classes", message)
        return _at_least_two(found, name)
    if options.classes is not None:
        return _declared(found, options.classes, name)
    if found != list(range(len(found))):
        raise _not_contiguous(found, name)
    return _at_least_two(found, name)


def _declared(found: list[int], classes: int, name: str) -> tuple[int, ...]:
    outside = [value for value in found if not 0 <= value < classes]
    if not outside:
        return tuple(range(classes))
    message = f"{classes} classes are declared, so labels are 0..{classes - 1}; {name} has {listing(outside)}"
    if outside == [classes] and min(found) >= 1:
        message += f". Its labels seem to start at 1, not 0: subtract 1, or {_offer(found)}"
    raise DataError("data.classes", message, value=str(outside[0]))


def _not_contiguous(found: list[int], name: str) -> DataError:
    first = str(found[0])
    if found == list(range(1, len(found) + 1)):
        message = (
            f"labels of {name} start at 1 (label base 1: {found[0]}..{found[-1]}); "
            f"0..{len(found) - 1} is needed. "
            f"Subtract 1, or {_offer(found)}; if class 0 is only absent, declare `classes: {found[-1] + 1}`"
        )
        return DataError("data.labels", message, value=first)
    what = f"{len(found)} values were found: {listing(found)}"
    message = f"labels of {name} are not 0..K-1; {what}. You may {_offer(found)}"
    if found[0] >= 0 and found[-1] < 2 * len(found) + 8:
        message += f"; or declare `classes: {found[-1] + 1}` if the others are only absent"
    return DataError("data.labels", message, value=first)


def _offer(found: list[int]) -> str:
    pairs = listing([f"{value} as {index}" for index, value in enumerate(found)], 6)
    return f"state `labels: map` to number them in ascending order ({pairs})"


def _at_least_two(found: list[int], name: str) -> tuple[int, ...]:
    if len(found) < 2:
        message = f"{name} has one class only ({found[0]}); two are needed, or declare `classes`"
        raise DataError("data.labels", message, value=str(found[0]))
    if len(found) > MAX_CLASSES:
        message = f"{name} has {len(found)} different labels; at most {MAX_CLASSES} are supported"
        raise DataError("data.labels", message)
    return tuple(found)


def _remarks(
    labels: NDArray[np.int64], counts: NDArray[np.int64], values: tuple[int, ...], name: str
) -> list[Finding]:
    findings = []
    absent = [values[index] for index in np.flatnonzero(counts == 0)]
    if absent:
        message = f"{name} has no sample of {len(absent)} of {len(values)} classes: {listing(absent)}"
        findings.append(Finding("warning", "classes_absent", message))
    if len(labels) > 2 and labels[0] != labels[-1] and bool((labels[1:] >= labels[:-1]).all()):
        message = f"the samples of {name} are sorted by label; a split by position would miss classes"
        findings.append(Finding("warning", "labels_sorted", message))
    return findings
