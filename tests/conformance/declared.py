"""The table of declared features in ``docs/semantics.md``: written and compared.

``python -m tests.conformance.declared`` asks every engine that can run here and rewrites the table.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping

from crosstrain_service.capabilities import EMULATED, EXACT, FEATURES, Feature
from tests.support.catalogue import ROOT, engines
from tests.support.service import Service, ServiceUnavailable

from .suite import Conformance

DOCUMENT = ROOT / "docs" / "semantics.md"
_BEGIN, _END = "<!-- declared features: begin -->\n", "<!-- declared features: end -->\n"
_SIGNS = {EXACT: "yes", EMULATED: "emulated"}
_NOT = "no"
#: Depend on the machine and the build, so that they stand in no table.
MACHINE = frozenset({"device.cuda", "execution.gpu_memory_growth", "execution.tf32"})
#: What the table holds.
LISTED = [name for name in FEATURES if name not in MACHINE]


def table(declared: Mapping[str, Mapping[str, Feature]]) -> str:
    """A Markdown table, features down and engines (name@version) across, and the notes below it."""
    names = list(declared)
    lines = [
        "| feature | " + " | ".join(names) + " |",
        "|---" * (len(names) + 1) + "|",
    ]
    for feature in LISTED:
        signs = [sign(declared[name].get(feature)) for name in names]
        lines.append(f"| `{feature}` | " + " | ".join(signs) + " |")
    lines += ["", "How emulated features are made, and why others are missing:", ""]
    notes: dict[tuple[str, str], dict[str, list[str]]] = {}
    for name in names:
        for feature in LISTED:
            value = declared[name].get(feature)
            if value is not None and value.note:
                places = notes.setdefault((sign(value), value.note), {})
                places.setdefault(f"`{feature}`", []).append(name)
    for (shown, note), places in notes.items():
        grouped: dict[str, list[str]] = {}
        for feature, where in places.items():
            grouped.setdefault(", ".join(where), []).append(feature)
        text = "; ".join(f"{', '.join(features)} in {where}" for where, features in grouped.items())
        lines.append(f"- {shown}: {note} ({text})")
    return "\n".join(lines) + "\n"


def sign(feature: Feature | None) -> str:
    """How the table shows a feature."""
    return _NOT if feature is None else _SIGNS.get(feature.support, _NOT)


def documented(engine: str) -> dict[str, str]:
    """What the document says of an engine: sign by feature; empty if the engine has no column."""
    text = DOCUMENT.read_text(encoding="utf-8")
    block = text[text.index(_BEGIN) + len(_BEGIN) : text.index(_END)]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines() if "|" in line]
    if not rows or engine not in rows[0]:
        return {}
    column = rows[0].index(engine)
    return {row[0].strip("`"): row[column] for row in rows[2:] if len(row) == len(rows[0])}


def main() -> int:
    """Rewrites the table; keeps it as it is where an engine cannot run, and says so."""
    declared: dict[str, dict[str, Feature]] = {}
    for service in dict.fromkeys(engine.service for engine in engines()):
        try:
            with Service(service) as running:
                for engine in engines():
                    if engine.service == service:
                        declared[str(engine)] = Conformance(running, engine.name).declared
        except ServiceUnavailable as reason:
            print(f"{service}: {reason}", file=sys.stderr)
            return 1
    text = DOCUMENT.read_text(encoding="utf-8")
    pattern = re.compile(re.escape(_BEGIN) + ".*" + re.escape(_END), re.DOTALL)
    DOCUMENT.write_text(pattern.sub(lambda _: _BEGIN + table(declared) + _END, text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
