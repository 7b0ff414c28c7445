"""The data of a job: one source or two, imported together, with everything that was found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .cache import DataCache
from .checks import check_pair
from .errors import DataError
from .importer import import_dataset, import_pair
from .info import DatasetInfo, Finding, ImportOptions


@dataclass(frozen=True)
class Imported:
    """What a job trains and is tested on; ``findings`` are remarks about it, none of them an error."""

    train: DatasetInfo | None
    test: DatasetInfo | None
    findings: tuple[Finding, ...]


def import_sources(
    train: Path | None, test: Path | None, options: ImportOptions, cache: DataCache
) -> Imported:
    """Imports what is given, and checks it: both sources share classes and, if both are bytes, the divisor.

    Raises:
        DataError: a source cannot be used, or the two do not fit together (``data.test``).
    """
    if train is None or test is None:
        first, second = (None if path is None else import_dataset(path, options, cache) for path in (train, test))
        findings: list[Finding] = []
    else:
        first, second = import_pair(train, test, options, cache)
        findings = check_pair(first, second, cache)
    for info in (first, second):
        findings += info.warnings if info is not None else ()
    errors = [finding.message for finding in findings if finding.severity == "error"]
    if errors:
        raise DataError("data.test" if second is not None else "data.train", "; ".join(errors))
    return Imported(first, second, tuple(findings))
