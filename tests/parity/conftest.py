"""Shows what was measured in the summary of the run."""

from __future__ import annotations

import sys

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    module = sys.modules.get("tests.parity.test_parity")
    lines = sorted(getattr(module, "MEASURED", ()))
    if lines:
        terminalreporter.section("parity: distance from the float64 reference")
    for line in lines:
        terminalreporter.write_line(line)
