"""Parts of the page prepared from the verdict: engines, map of checks, facts, cross-evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from . import text
from .data import CrossRow
from .shown import Shown

#: Order in which a step is computed, which is the order of the map's rows.
_ORDER = ("input", "forward", "loss", "backward", "gradient", "update", "state", "evaluation")
#: Worst verdicts come first.
_SEVERITY = {"MISMATCH": 0, "INCONCLUSIVE": 1, "ROUNDING": 2, "IDENTICAL": 3}
#: Facts that name the engine itself; they differ between engines and mean nothing.
_NAMES = ("engine.name", "engine.version")
#: Names of facts listed in a row of the table of pairs.
_FACTS_A_PAIR = 5

#: Exact checks in a row that the map folds into one.
_FOLDED = 3

Found = dict[str, Any]


def listed(value: Any) -> list[Found]:
    """The objects of a list; whatever else it is, nothing."""
    return [dict(item) for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def mapped(value: Any) -> Found:
    """The object; nothing if it is none."""
    return dict(value) if isinstance(value, Mapping) else {}


def strings(value: Any) -> list[str]:
    """The texts of a list."""
    return [str(item) for item in value] if isinstance(value, list) else []


def engine_sections(verdict: Mapping[str, Any], shown: Sequence[Shown], rows: int) -> list[Found]:
    """Each engine with what the template shows of it, the worst verdict first; ``rows`` caps its checks."""
    runs = {item.label: item.run for item in shown}
    sections = []
    for engine in listed(verdict.get("engines")):
        label = str(engine.get("label") or engine.get("engine") or "?")
        certificate = mapped(engine.get("certificate"))
        layers = listed(certificate.get("layers"))
        certificate["layers"] = layers[:rows]
        certificate["left_out"] = max(0, len(layers) - rows)
        certificate["worst"] = sorted(listed(certificate.get("worst")), key=_badness, reverse=True)
        certificate["first_failure"] = mapped(certificate.get("first_failure"))
        certificate["cases"] = strings(certificate.get("cases"))
        certificate["steps"] = strings(certificate.get("steps"))
        causes = engine_causes(engine)
        run = runs.get(label)
        sections.append(
            {
                **engine,
                "label": label,
                "verdict": str(engine.get("verdict") or "INCONCLUSIVE"),
                "certificate": certificate,
                "causes": causes,
                "free_run": _free_run(engine.get("free_run")),
                "repeats": mapped(engine.get("repeats")),
                "accuracy": _accuracy(engine.get("accuracy")),
                "conventions": mapped(engine.get("conventions")),
                "run_error": run.error if run else "",
            }
        )
    return sorted(sections, key=lambda item: _SEVERITY.get(item["verdict"], 1))


def engine_causes(engine: Mapping[str, Any]) -> list[Found]:
    """Causes of one engine; one that shows in several cases of the probe is told once, with all places."""
    found: dict[tuple[Any, ...], Found] = {}
    for number, cause in enumerate(listed(engine.get("causes"))):
        cause.update({name: strings(cause.get(name)) for name in ("ids", "where", "also")})
        cause["worst"] = mapped(cause.get("worst"))
        cause["unknown"] = bool(cause.get("unknown"))
        key = (number,) if cause["unknown"] else (*cause["ids"], str(cause.get("title")))
        entry = found.setdefault(key, {**cause, "where": [], "cases": []})
        entry["where"] += [place for place in cause["where"] if place not in entry["where"]]
        case = str(cause.get("case") or "")
        entry["cases"] += [case] if case and case not in entry["cases"] else []
    return list(found.values())


def _free_run(value: Any) -> Found:
    run = mapped(value)
    run["flip"] = mapped(run.get("flip"))
    run["rank_test"] = mapped(run.get("rank_test"))
    return run if value else {}


def _accuracy(value: Any) -> Found:
    accuracy = mapped(value)
    accuracy["tost"] = mapped(accuracy.get("tost"))
    return accuracy


def shared_causes(sections: Sequence[Found]) -> list[Found]:
    """Causes, each once, with the engines it was found in."""
    found: dict[tuple[Any, ...], Found] = {}
    for section in sections:
        for cause in section["causes"]:
            unknown = cause["unknown"]
            key = (section["label"], len(found)) if unknown else (*cause["ids"], str(cause.get("title")))
            entry = found.setdefault(key, {**cause, "engines": []})
            entry["engines"].append({"label": section["label"], "where": cause["where"]})
    return sorted(found.values(), key=lambda item: item["unknown"])


def check_map(sections: Sequence[Found], verdict: Mapping[str, Any]) -> Found:
    """Error over bound of every check (the worst case and step) with one column an engine.

    Rows are in the order in which a step is computed, layers as the engine with fewest failures lists
    them (failures come first in the list, so that one is nearest to the order of the network).
    """
    tables: dict[str, dict[tuple[str, str], float | None]] = {}
    for engine in listed(verdict.get("engines")):
        table: dict[tuple[str, str], float | None] = {}
        for row in listed(mapped(engine.get("certificate")).get("layers")):
            key = (str(row.get("direction") or ""), str(row.get("subject") or row.get("layer") or ""))
            number = text.told(row.get("ratio"))
            if key not in table or _badness({"ratio": number}) > _badness({"ratio": table[key]}):
                table[key] = number
        if table:
            tables[str(engine.get("label") or engine.get("engine") or "?")] = table
    fewest = sorted(
        tables.values(), key=lambda table: sum(text.level(value)[0] == "f" for value in table.values())
    )
    keys: dict[tuple[str, str], None] = {}
    for table in fewest:
        keys.update(dict.fromkeys(table))
    ordered = sorted(keys, key=lambda key: _ORDER.index(key[0]) if key[0] in _ORDER else len(_ORDER))
    labels = [section["label"] for section in sections if section["label"] in tables]
    rows = [
        {"direction": key[0], "subject": key[1], "cells": [_cell(tables[label], key) for label in labels]}
        for key in ordered
    ]
    return {"labels": labels, "rows": _folded(rows)}


def _folded(rows: list[Found]) -> list[Found]:
    """Rows with runs of checks that are exact in every engine folded into one row each."""
    found: list[Found] = []
    for (direction, plain), group in groupby(rows, lambda row: (row["direction"], _all_exact(row))):
        members = list(group)
        if plain and len(members) >= _FOLDED:
            members = [{**members[0], "subject": f"{len(members)} checks", "direction": direction}]
        found += members
    return found


def _all_exact(row: Found) -> bool:
    return all(cell["level"] in ("h0", "none") for cell in row["cells"])


def _cell(table: Mapping[tuple[str, str], float | None], key: tuple[str, str]) -> Found:
    if key not in table:
        return {"text": "", "level": "none"}
    return {"text": text.ratio(table[key]), "level": text.level(table[key])}


def _badness(row: Mapping[str, Any]) -> float:
    value = text.told(row.get("ratio"))
    return value if value is not None and value == value else float("inf")


def pairs(verdict: Mapping[str, Any]) -> list[Found]:
    """Pairs of engines with the names of the facts in which they differ."""
    found = []
    for pair in listed(verdict.get("pairs")):
        facts = [str(item.get("name") or "") for item in listed(pair.get("fact_differences"))]
        facts = [name for name in facts if name not in _NAMES]
        shown, more = facts[:_FACTS_A_PAIR], max(0, len(facts) - _FACTS_A_PAIR)
        found.append({**pair, "facts": shown, "more_facts": more})
    return found


def fact_table(shown: Sequence[Shown]) -> Found:
    """Facts of all runs side by side: those that differ, and those that are the same."""
    runs = [item for item in shown if item.run.facts]
    names = sorted({name for item in runs for name in item.run.facts} - set(_NAMES))
    differing, same = [], []
    for name in names:
        values = [item.run.facts.get(name) for item in runs]
        known = [value for value in values if value is not None]
        most = max(sorted(set(known)), key=known.count)
        common = most if 2 * known.count(most) > len(known) else None
        if len(set(values)) == 1:
            same.append({"name": name, "value": values[0]})
        else:
            cells = [
                {"value": value, "odd": None not in (value, common) and value != common} for value in values
            ]
            differing.append({"name": name, "cells": cells, "only_missing": len(set(known)) == 1})
    differing.sort(key=lambda row: bool(row["only_missing"]))
    return {"labels": [item.label for item in runs], "differing": differing, "same": same}


def cross_matrix(rows: Sequence[CrossRow]) -> Found:
    """The matrix of cross-evaluations: rows are weights, columns the engines that evaluated them."""
    owners = list(dict.fromkeys(row.weights_of for row in rows))
    places = list(dict.fromkeys(row.evaluated_in for row in rows))
    cells = {(row.weights_of, row.evaluated_in): row for row in rows}
    lines = [{"label": owner, "cells": [cells.get((owner, place)) for place in places]} for owner in owners]
    return {
        "labels": places,
        "rows": lines,
        "differing": sum(row.differing for row in rows),
        "beyond": sum(row.differing - row.within_rounding for row in rows),
        "images": max((row.images for row in rows), default=0),
    }


def rounding(verdict: Mapping[str, Any]) -> str:
    """What is rounded to, for the sentence that says what a bound is."""
    words = {
        "float64": "64-bit rounding",
        "mixed_float16": "rounding to float16 (11 significant bits) and float32",
        "mixed_bfloat16": "rounding to bfloat16 (8 significant bits) and float32",
    }
    return words.get(str(verdict.get("precision")), "32-bit rounding")
