"""Options and fixtures of the tests across components."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .support.service import Service, ServiceUnavailable


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--engines",
        default="",
        help="engines to test: names or name@version separated by commas; default: all of the catalogue",
    )


class Services:
    """Service processes started once per session, by name of the service."""

    def __init__(self) -> None:
        self._found: dict[str, Service | ServiceUnavailable] = {}

    def get(self, name: str) -> Service:
        """The running service; skips the test, with the reason, where it cannot be had."""
        if name not in self._found:
            try:
                self._found[name] = Service(name)
            except ServiceUnavailable as reason:
                self._found[name] = reason
        found = self._found[name]
        if isinstance(found, ServiceUnavailable):
            pytest.skip(str(found))
        return found

    def close(self) -> None:
        """Ends all processes."""
        for item in self._found.values():
            if isinstance(item, Service):
                item.close()


@pytest.fixture(scope="session")
def services() -> Iterator[Services]:
    """Services of the catalogue, started when first asked for."""
    holder = Services()
    yield holder
    holder.close()
