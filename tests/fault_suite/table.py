"""The results as a table for people, as JSON, and in the documentation."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from . import clean
from .execute import Results
from .faults import ROWS
from .scoring import Score

_BEGIN, _END = "<!-- results: begin -->\n", "<!-- results: end -->\n"

#: Shares that the suite must reach.
CAUGHT, NAMED = 0.95, 0.90


class Summary:
    """Counts over all results. A fault counts once for every engine that it is planted in."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self.faults = len(results.scores)
        self.caught = sum(score.caught for score in results.scores)
        self.named = sum(score.named for score in results.scores)
        self.verdicts = clean.pairs(results.runs)
        self.pairs = len(self.verdicts)
        self.alarms = [str(pair) for pair in self.verdicts if pair.alarm]
        self.errors = [f"{run.engine}, {run.variation}, {run.case}: {run.error}" for run in results.runs if run.error]

    @property
    def line(self) -> str:
        """The last line of the suite."""
        return (f"caught {self.caught}/{self.faults} named {self.named}/{self.faults} "
                f"false-alarms {len(self.alarms)}/{self.pairs}")  # fmt: skip

    @property
    def passed(self) -> bool:
        """Whether the shares are reached, no clean pair raises an alarm and every clean run could be judged."""
        return (
            self.faults > 0
            and self.caught >= CAUGHT * self.faults
            and self.named >= NAMED * self.faults
            and not self.alarms
            and not self.errors
        )

    @property
    def kinds(self) -> int:
        """Different faults, whatever engine they are planted in."""
        return len({(score.fault.title, score.fault.network, score.fault.names) for score in self.results.scores})


def text_table(results: Results) -> str:
    """One line per fault and engine."""
    lines = [f"{'fault':<44} {'engine':<26} caught named  what was named"]
    for score in _sorted(results):
        found = score.error or ", ".join(score.found) or "nothing"
        lines.append(f"{_title(score):<44} {score.engine:<26} {_yes(score.caught):<6} {_yes(score.named):<6} {found}")
    return "\n".join(lines)


def document(results: Results) -> dict[str, Any]:
    """The results as a JSON document."""
    summary = Summary(results)
    return {
        "summary": summary.line,
        "passed": summary.passed,
        "seconds": round(results.seconds),
        "faults": [
            {"title": score.fault.title, "network": score.fault.network, "row": ROWS[score.fault.row],
             "engine": score.engine, "expected": sorted(score.fault.names), "found": list(score.found),
             "caught": score.caught, "named": score.named, "first": score.first, "error": score.error,
             "details": list(score.details)}
            for score in _sorted(results)
        ],
        "clean": [
            {"engine": run.engine, "variation": run.variation, "case": run.case, "precision": run.precision,
             "error": run.error, "worst": dict(run.worst)}
            for run in results.runs
        ],
        "false_alarms": summary.alarms,
        "missing": results.missing,
    }  # fmt: skip


def write_json(results: Results, path: Path) -> None:
    """Writes the JSON document."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document(results), indent=1) + "\n", encoding="utf-8")


def write_document(results: Results, path: Path) -> None:
    """Replaces what stands between the two marks in the Markdown file."""
    text = path.read_text(encoding="utf-8")
    pattern = re.compile(re.escape(_BEGIN) + ".*" + re.escape(_END), re.DOTALL)
    path.write_text(pattern.sub(lambda _: _BEGIN + markdown(results) + _END, text), encoding="utf-8")


def markdown(results: Results) -> str:
    """Counts, one row per fault with the engines that it was planted in, and the clean runs."""
    summary = Summary(results)
    lines = [
        f"`{summary.line}`", "",
        f"{summary.kinds} different faults, {summary.faults} with every engine counted; "
        f"{len(results.runs)} clean runs in {summary.pairs} pairs ({_counts(summary)}).", "",
        "| row of the semantics table | fault | must be named | caught and named in | otherwise |",
        "|---|---|---|---|---|",
    ]  # fmt: skip
    grouped: dict[tuple[str, str, str, str], list[Score]] = defaultdict(list)
    for score in _sorted(results):
        names = ", ".join(f"`{name}`" for name in sorted(score.fault.names))
        grouped[ROWS[score.fault.row], score.fault.title, score.fault.network, names].append(score)
    order = {row: number for number, row in enumerate(ROWS.values())}
    for (row, title, network, names), scores in sorted(grouped.items(), key=lambda item: order[item[0][0]]):
        right = ", ".join(score.engine for score in scores if score.named)
        wrong = "; ".join(f"{score.engine}: {_outcome(score)}" for score in scores if not score.named)
        lines.append(f"| {row} | {title} ({network}) | {names} | {right} | {wrong} |")
    lines += ["", "Clean runs, by engine and way of running it:", "",
              "| engine | run | cases | largest error over bound | alarms |", "|---|---|---|---|---|"]  # fmt: skip
    runs: dict[tuple[str, str], list[clean.CleanRun]] = defaultdict(list)
    for run in results.runs:
        runs[run.engine, run.variation].append(run)
    for (engine, variation), members in sorted(runs.items()):
        worst = max((ratio for run in members for ratio in run.worst.values()), default=0.0)
        alarms = sum(pair.alarm and any(run is pair.first or run is pair.second for run in members)
                     for pair in summary.verdicts)  # fmt: skip
        lines.append(f"| {engine} | {variation} | {len(members)} | {worst:.2f} | {alarms} |")
    for service, reason in sorted(results.missing.items()):
        lines.append(f"\nNot run: {service}: {reason}")
    return "\n".join(lines) + "\n"


def _counts(summary: Summary) -> str:
    counted = Counter(pair.verdict for pair in summary.verdicts)
    return ", ".join(f"{number} {verdict}" for verdict, number in sorted(counted.items()))


def _outcome(score: Score) -> str:
    if score.error:
        return score.error
    if not score.caught:
        return "not caught"
    return "named " + ", ".join(f"`{name}`" for name in score.found)


def _sorted(results: Results) -> list[Score]:
    return sorted(results.scores, key=lambda score: (list(ROWS).index(score.fault.row), _title(score), score.engine))


def _title(score: Score) -> str:
    return f"{score.fault.title} ({score.fault.network})"


def _yes(value: bool) -> str:
    return "yes" if value else "NO"
