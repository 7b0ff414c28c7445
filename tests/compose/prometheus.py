"""Questions to the Prometheus of the stack."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from typing import Any


class Prometheus:
    """The server's HTTP interface at a port of this machine."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    def ask(self, expr: str) -> list[dict[str, Any]]:
        """The result of an instant query."""
        return list(self._get("query", query=expr)["result"])

    def rules(self) -> list[dict[str, Any]]:
        """All rules as Prometheus evaluated them last."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def _get(self, path: str, **parameters: str) -> Any:
        with urllib.request.urlopen(f"{self._url}/{path}?{urllib.parse.urlencode(parameters)}", timeout=20) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        return found["data"]
