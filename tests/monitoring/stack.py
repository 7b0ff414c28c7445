"""A coordinator, two services and a Prometheus that scrapes them, as processes."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from crosstrain.cli.jobfile import send_data
from crosstrain.client import Client
from crosstrain.data import DataCache, ImportOptions, import_sources
from tests.e2e import inputs
from tests.faults.processes import Process
from tests.support.service import Service

from .queries import RULES

SERVICES = {"reference": "reference", "torch": "torch"}
SCRAPE_SECONDS = 1


class Stack:
    """Closed by :meth:`close`. Raises ``ServiceUnavailable`` where an environment cannot be had."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = ExitStack()
        self._ports: dict[str, Path] = {}
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        self.coordinator = Process(
            self.folder, "coordinator", "crosstrain.api", "--state-dir", str(self.folder / "state"),
            *self._metrics("coordinator"),
        )  # fmt: skip
        self._stack.callback(self.coordinator.close)
        self.client = self._stack.enter_context(Client(self.coordinator.address))
        for name in SERVICES.values():
            options = ("--coordinator", self.coordinator.address, "--preferred", *self._metrics(name))
            self._stack.enter_context(Service(name, options=options))
        self.prometheus = f"http://127.0.0.1:{self._start_prometheus()}"
        deadline = time.monotonic() + 60
        while len({item.service for item in self.client.list_engines() if item.healthy}) < len(SERVICES):
            assert time.monotonic() < deadline, "the services did not register"
            time.sleep(0.1)
        # A rate needs the counters' zeros from before the first run.
        while len(self.ask("up == 1")) < len(self._ports):
            assert time.monotonic() < deadline, "Prometheus did not scrape all processes"
            time.sleep(0.1)

    def _metrics(self, name: str) -> tuple[str, ...]:
        self._ports[name] = self.folder / f"{name}.metrics"
        return "--metrics-port", "auto", "--metrics-port-file", str(self._ports[name])

    def _start_prometheus(self) -> int:
        folder = self.folder / "prometheus"
        folder.mkdir()
        targets = [
            {"targets": [f"127.0.0.1:{path.read_text().strip()}"], "labels": {"component": name}}
            for name, path in self._ports.items()
        ]
        (folder / "targets.json").write_text(json.dumps(targets))
        shutil.copy(RULES, folder)
        (folder / "prometheus.yaml").write_text(
            json.dumps({
                "global": {"scrape_interval": f"{SCRAPE_SECONDS}s", "evaluation_interval": "1s"},
                "rule_files": [RULES.name],
                "scrape_configs": [{"job_name": "crosstrain", "file_sd_configs": [{"files": ["targets.json"]}]}],
            })
        )  # fmt: skip
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        log = self._stack.enter_context(open(folder / "log", "wb"))
        process = subprocess.Popen(
            ["prometheus", "--config.file=prometheus.yaml", "--storage.tsdb.path=data", "--log.level=warn",
             f"--web.listen-address=127.0.0.1:{port}"],
            cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
        self._stack.callback(process.wait)
        self._stack.callback(process.terminate)
        deadline = time.monotonic() + 30
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5).close()
                return port
            except OSError:
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline, "Prometheus did not become ready"
                time.sleep(0.1)

    def start_job(self, job_id: str) -> None:
        """A job of both engines at the same time, with far more epochs than the test waits for."""
        files = inputs.write_digits(self.folder / "digits")
        cache = DataCache(self.folder / "cache")
        found = import_sources(*files, ImportOptions(), cache)
        data = [send_data(self.client, item, cache) for item in (found.train, found.test)]
        text = inputs.document(
            list(SERVICES), training={"epochs": 20000}, devices={"kind": "cpu", "shared": True}
        )
        self.client.create_job(text, *data, job_id)

    def ask(self, expr: str) -> list[dict[str, Any]]:
        """The result of an instant query."""
        return list(self._get("query", query=expr)["result"])

    def _get(self, path: str, **parameters: str) -> Any:
        url = f"{self.prometheus}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=20) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        return found["data"]

    def rules(self) -> list[dict[str, Any]]:
        """All rules as Prometheus evaluated them last."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def close(self) -> None:
        self._stack.close()
