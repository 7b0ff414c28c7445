"""The results as counts, as JSON, and in the documentation."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .execute import Results
from .faults import FAULTS, Score
from .scoring import Parity

_BEGIN, _END = "<!-- results: begin -->\n", "<!-- results: end -->\n"


class Summary:
    """Counts over all results: a case counts once for every engine and strategy, and so does a fault."""

    def __init__(self, results: Results) -> None:
        self.parity = len(results.parity)
        self.holds = sum(parity.holds for parity in results.parity)
        self.faults = len(results.scores)
        self.broken = results.broken
        self.named = sum(score.named for score in results.scores)

    @property
    def line(self) -> str:
        """The last line of the suite."""
        return f"parity {self.holds}/{self.parity} faults {self.named}/{self.faults}"

    @property
    def passed(self) -> bool:
        """Whether everything that ran is as it must be, and something ran."""
        right = self.holds == self.parity and self.named == self.faults
        return self.parity + self.faults > 0 and right and not self.broken


def document(results: Results) -> dict[str, Any]:
    """The results as a JSON document."""
    summary = Summary(results)
    return {
        "summary": summary.line,
        "passed": summary.passed,
        "seconds": round(results.seconds),
        "parity": [
            {"engine": item.engine, "strategy": item.strategy, "case": item.case, "verdict": item.certificate,
             "against_one_rank": item.pair, "worst": item.worst, "details": list(item.details)}
            for item in results.parity
        ],
        "faults": [
            {"fault": item.fault.title, "engine": item.engine, "strategy": item.strategy, "expected": item.fault.name,
             "found": list(item.found), "caught": item.caught, "named": item.named, "error": item.error,
             "details": list(item.details)}
            for item in results.scores
        ],
        "refused": [list(item) for item in results.refused],
        "undeclared": [list(item) for item in results.undeclared],
        "missing": results.missing,
        "broken": results.broken,
    }  # fmt: skip


def write_json(results: Results, path: Path) -> None:
    """Writes the JSON document."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document(results), indent=1) + "\n", encoding="utf-8")


def read_json(path: Path) -> Results:
    """The results that :func:`write_json` wrote."""
    value = json.loads(path.read_text(encoding="utf-8"))
    faults = {fault.title: fault for fault in FAULTS}
    return Results(
        [Parity(item["engine"], item["strategy"], item["case"], item["verdict"], item["against_one_rank"],
                item["worst"], tuple(item["details"])) for item in value["parity"]],
        [Score(faults[item["fault"]], item["engine"], item["strategy"], item["caught"], tuple(item["found"]),
               item["error"], tuple(item["details"])) for item in value["faults"] if item["fault"] in faults],
        [(engine, strategy, reason) for engine, strategy, reason in value["undeclared"]],
        [(engine, strategy, case, reason) for engine, strategy, case, reason in value["refused"]],
        value["missing"],
        value["seconds"],
    )  # fmt: skip


def joined(before: Results, now: Results) -> Results:
    """Earlier results with those of now in place of the same engine's, or of its same strategy."""
    parity = {(item.engine, item.strategy) for item in now.parity}
    planted = {(item.engine, item.strategy) for item in now.scores}
    said = {item[:2] for item in (*now.undeclared, *now.refused)} | parity
    ran = {engine for engine, _ in said | planted}
    return Results(
        [item for item in before.parity if (item.engine, item.strategy) not in parity] + now.parity,
        [item for item in before.scores if (item.engine, item.strategy) not in planted] + now.scores,
        [item for item in before.undeclared if item[:2] not in said] + now.undeclared,
        [item for item in before.refused if item[:2] not in said] + now.refused,
        {name: reason for name, reason in {**before.missing, **now.missing}.items() if name not in ran},
        before.seconds + now.seconds,
        now.broken,
    )


def write_document(results: Results, path: Path) -> None:
    """Replaces what stands between the two marks in the Markdown file."""
    text = path.read_text(encoding="utf-8")
    pattern = re.compile(re.escape(_BEGIN) + ".*" + re.escape(_END), re.DOTALL)
    path.write_text(pattern.sub(lambda _: _BEGIN + markdown(results) + _END, text), encoding="utf-8")


def markdown(results: Results) -> str:
    """Counts, the strategies of every engine, the faults, and what is not offered."""
    lines = [f"`{Summary(results).line}`", "",
             "| engine | ranks | cases that hold | verdicts against one rank | largest error over bound | otherwise |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    grouped: dict[tuple[str, str], list[Parity]] = defaultdict(list)
    for parity in results.parity:
        grouped[parity.engine, parity.strategy].append(parity)
    for (engine, strategy), members in grouped.items():
        good = sum(item.holds for item in members)
        verdicts = ", ".join(f"{sum(item.pair == name for item in members)} {name}"
                             for name in dict.fromkeys(sorted(item.pair for item in members)))  # fmt: skip
        worst = max(item.worst for item in members)
        wrong = "; ".join(f"{item.case}: {' '.join(item.details)}" for item in members if not item.holds)
        counts = f"{good} of {len(members)} | {verdicts} | {worst:.2f}"
        lines.append(f"| {engine} | {strategy} | {counts} | {_cell(wrong)} |")
    lines += ["", "Which cases ran (those that an engine refuses are below):", "", *_cases(grouped)]
    lines += ["", "| fault on two ranks | must be named | caught and named in | otherwise |", "|---|---|---|---|"]
    planted: dict[str, list[Score]] = defaultdict(list)
    for score in results.scores:
        planted[score.fault.title].append(score)
    for fault in FAULTS:
        scores = planted.get(fault.title, [])
        right = ", ".join(_where(score) for score in scores if score.named)
        wrong = "; ".join(f"{_where(score)}: {score.error or ', '.join(score.found) or 'not caught'}"
                          for score in scores if not score.named)  # fmt: skip
        lines.append(f"| {fault.says} (`{fault.title}`) | `{fault.name}` | {right} | {_cell(wrong)} |")
    lines += ["", "Refused, though its parts are declared:", ""]
    reasons: dict[tuple[str, str], list[str]] = defaultdict(list)
    for engine, strategy, case, reason in results.refused:
        reasons[engine, reason].append(f"{strategy} ({case})")
    lines += [f"- {engine}: {reason}: {', '.join(found)}" for (engine, reason), found in reasons.items()]
    lines += ["", "Not declared:", ""]
    lacking: dict[tuple[str, str], list[str]] = defaultdict(list)
    for engine, strategy, reason in results.undeclared:
        lacking[engine, reason].append(strategy)
    lines += [f"- {engine}: {', '.join(found)}: {reason}" for (engine, reason), found in lacking.items()]
    lines += [f"- {engine}: not run: {reason}" for engine, reason in results.missing.items()]
    return "\n".join(lines) + "\n"


def _cases(grouped: Mapping[tuple[str, str], list[Parity]]) -> list[str]:
    """The strategies of every set of cases, with their engines."""
    known: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for (engine, strategy), members in grouped.items():
        known[", ".join(item.case for item in members)][strategy].append(engine)
    same: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for names, where in known.items():
        for strategy, engines in where.items():
            same[names, tuple(engines)].append(strategy)
    return [f"- {names}: {'; '.join(found)} ({', '.join(engines)})" for (names, engines), found in same.items()]


def _where(score: Score) -> str:
    return f"{score.engine} ({score.strategy.split(', ')[-1]})"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
