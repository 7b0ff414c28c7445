"""Fixtures of the conformance suite, and the worst ratios in the summary of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from crosstrain.compare.certificate.checks import Check
from tests.conftest import Services
from tests.support.catalogue import EngineId
from tests.support.service import ServiceUnavailable

from .suite import Conformance

#: (engine, kind of check) -> (worst check, case); filled by the tests.
WORST: dict[tuple[str, str], tuple[Check, str]] = {}


@pytest.fixture(scope="session")
def conformance(services: Services) -> Iterator[Callable[[EngineId], Conformance]]:
    """An engine's outcomes; the engine's cases run once, when first asked for."""
    found: dict[EngineId, Conformance] = {}

    def get(engine: EngineId) -> Conformance:
        if engine not in found:
            try:
                found[engine] = Conformance(services.get(engine.service), engine.name)
            except ServiceUnavailable as reason:
                pytest.skip(str(reason))
        return found[engine]

    yield get


def note(engine: str, case: str, checks: list[Check]) -> None:
    """Remembers the worst ratio per engine and kind of check."""
    for check in checks:
        key = (engine, check.kind)
        if key not in WORST or check.ratio > WORST[key][0].ratio:
            WORST[key] = (check, case)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if WORST:
        terminalreporter.section("conformance: worst error over bound")
    for (engine, kind), (check, case) in sorted(WORST.items()):
        terminalreporter.write_line(
            f"{engine:<24} {kind:<16} {check.ratio:8.3f}   {case}, step {check.step}, {check.subject}"
        )
