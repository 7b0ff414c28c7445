"""``python -m crosstrain.compare.causes.document [FILE]``: writes the table of conventions as Markdown.

Without FILE it goes to ``docs/conventions.md`` of the working directory.
"""

from __future__ import annotations

import sys
from pathlib import Path

from crosstrain.compare.causes.convention import Convention
from crosstrain.compare.causes.table import CONVENTIONS

_TITLES = {
    "input": "Data",
    "weights": "Weights",
    "convolution": "Convolution",
    "precision": "Precision",
    "pool": "Pooling",
    "relu": "ReLU",
    "dense": "Flatten and dense layers",
    "dropout": "Dropout",
    "batch_norm": "Batch normalisation",
    "lrn": "Local response normalisation",
    "loss": "Loss",
    "gradient": "Gradients of several ranks",
    "parallel": "Shares of several ranks",
    "decay": "Weight decay",
    "clip": "Clipping",
    "momentum": "Momentum",
    "rmsprop": "RMSProp",
    "adagrad": "Adagrad",
    "adam": "Adam",
    "optimizer": "Any update rule",
    "rate": "Learning rate",
    "evaluation": "Evaluation",
}
_SHOWN = {
    "input": "input batch",
    "labels": "labels",
    "mask": "dropout mask",
    "weights": "initial weights",
    "initial state": "initial state",
    "loss": "loss and its gradient",
    "update": "update",
    "statistics": "statistics for evaluation",
    "evaluation": "evaluation",
    "layer": "layer",
    "rate": "learning rate",
}
_INTRODUCTION = """# Conventions that a verdict can name

Frameworks given the same network, weights and data may still compute different functions. When a check of an engine's
training step fails, Crosstrain tries every convention below on the engine's own inputs of that piece, alone and in
pairs (of an update also with a third, where two are a framework's own form of the rule); the one that brings the
engine's values inside the rounding bound is the cause. No tolerance is guessed: under the right convention the
remaining error is rounding, under a wrong one it is not. A convention that gives the same numbers as another on the
data at hand is listed along with it. `docs/semantics.md` defines the canonical function.

This file is written by `python3.11 tools/run.py -m crosstrain.compare.causes.document`.
"""


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("_", "\\_").replace("<", "&lt;")


def _row(item: Convention) -> str:
    places = ", ".join(_SHOWN[stage] for stage in item.vary)
    cells = (f"`{item.id}`", f"**{_escaped(item.title)}.** {_escaped(item.says)}", places, _escaped(item.found_in),
             _escaped(item.restore))  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def document() -> str:
    """The whole document."""
    lines = [_INTRODUCTION]
    for family, title in _TITLES.items():
        lines += [f"## {title}", "", "| Name | What the engine does | Seen in | Usual in | Restored by |",
                  "|---|---|---|---|---|"]  # fmt: skip
        lines += [_row(item) for item in CONVENTIONS if item.family == family]
        lines.append("")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Writes the document."""
    path = Path(arguments[0]) if arguments else Path("docs") / "conventions.md"
    path.write_text(document(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
