"""Makes report.html again from a results folder."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from crosstrain_service.errors import CrosstrainError

from .folder import load_folder, load_verdict
from .page import write_report


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 3 if the folder cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m crosstrain.report", description=__doc__)
    parser.add_argument("folder", type=Path, help="results folder of a job")
    parser.add_argument("--output", type=Path, help="the page (default: report.html in the folder)")
    options = parser.parse_args(arguments)
    path = options.output or options.folder / "report.html"
    try:
        write_report(path, load_verdict(options.folder), load_folder(options.folder))
    except (CrosstrainError, OSError) as error:
        print(f"crosstrain.report: {error}", file=sys.stderr)
        return 3
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
