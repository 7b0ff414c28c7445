"""Makes an SVG picture of terminal output for the documentation, from text with ANSI colours on standard input.

    script -qec "bin/crosstrain demo" /dev/null | tail -30 | tools/run.py tools/terminal_picture.py docs/images/demo.svg
"""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text


def main() -> int:
    """Reads standard input, writes the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=Path, help="the SVG file")
    parser.add_argument("--title", default="make demo")
    arguments = parser.parse_args()
    text = Text.from_ansi(sys.stdin.read().replace("\r\n", "\n").rstrip("\n"))
    width = max((line.cell_len for line in text.split()), default=80)
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(text, no_wrap=True, overflow="ignore", crop=False)
    arguments.picture.parent.mkdir(parents=True, exist_ok=True)
    arguments.picture.write_text(console.export_svg(title=arguments.title))
    return 0


if __name__ == "__main__":
    sys.exit(main())
