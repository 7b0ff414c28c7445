"""Serves the metrics of a process over HTTP under ``/metrics``."""

import http.server
import logging
import os
import socket
import socketserver
import threading
from typing import Any, Optional, Tuple

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

_LOG = logging.getLogger("crosstrain.metrics")
#: Port of a process that was given none; a busy one only means that this process has no metrics.
DEFAULT_PORT = 9464
#: A client that sends nothing for this long is cut off, seconds.
_PATIENCE_SECONDS = 10.0


class MetricsError(Exception):
    """Metrics cannot be served as asked; the message is one line for whoever starts the process."""


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self) -> None:
        # The one of HTTPServer looks the host's name up, which takes seconds without a name server.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]

    def handle_error(self, request: Any, client_address: Any) -> None:
        _LOG.debug("a client of the metrics went away", exc_info=True)


class MetricsServer:
    """Bound at once, so that a busy port is found before anything else is started; answers after :meth:`start`.

    Raises:
        MetricsError: the address cannot be bound.
    """

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = _PATIENCE_SECONDS
            server_version, sys_version = "crosstrain", ""

            def do_GET(self) -> None:
                if self.path.partition("?")[0] != "/metrics":
                    self.send_error(404, "only /metrics is here")
                    return
                try:
                    body = generate_latest(registry)
                except Exception:  # a collector's defect costs this scrape, not the connection
                    _LOG.exception("the metrics cannot be collected")
                    self.send_error(500, "the metrics cannot be collected")
                    return
                self.send_response(200)
                self.send_header("Content-Type", CONTENT_TYPE_LATEST)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            do_HEAD = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                _LOG.debug(format, *args)

        host = host.strip("[]")
        kind = type("Server", (_Server,), {"address_family": socket.AF_INET6}) if ":" in host else _Server
        try:
            self._server = kind((host, port), Handler)
        except OSError as error:
            raise MetricsError("metrics cannot be served on %s:%d: %s; choose another port with --metrics-port, "
                               "or none with --metrics-port 0" % (host, port, error.strerror or error)) from None
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)

    def start(self) -> None:
        """Begins to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stops serving."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()


def check_port(text: str) -> str:
    """A value of ``--metrics-port``: "auto", or 0 (off) to 65535. Raises ``ValueError``."""
    if text not in ("", "auto") and not (text.isdigit() and int(text) <= 65535):
        raise ValueError("a metrics port is a number from 0 (none) to 65535, or auto")
    return text


def bind(listen: str, port: str, registry: CollectorRegistry) -> Optional[MetricsServer]:
    """The server of a process's metrics, on the host that its API listens on; None if there is none.

    Args:
        listen: host:port of the API.
        port: "0" means none, "auto" any free port, a number exactly that one, "" 9464 if it is free.

    Raises:
        MetricsError: a port that was asked for cannot be bound.
    """
    host = listen.rpartition(":")[0]
    if port == "0":
        return None
    try:
        return MetricsServer(host, 0 if port == "auto" else int(port or DEFAULT_PORT), registry)
    except MetricsError as error:
        if port:
            raise
        _LOG.warning("%s; this process has no metrics", error)
        return None


def registry_of(collector: Any) -> CollectorRegistry:
    """A registry with the process's own metrics and a collector of ours."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(collector)
    return registry


def free_and_size(path: str) -> Tuple[int, int]:
    """Bytes that this process may still write to the file system of a folder, and its size; raises ``OSError``."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
