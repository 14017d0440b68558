"""The operator's page over HTTP: `/metrics` for Prometheus, `/healthz` for whoever wants to know how the picker is."""

import json
import socket
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from socketserver import ThreadingMixIn
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

_JSON = ("Content-Type", "application/json")


class OperatorPage:
    """Served from a thread of its own; ask for `port` once it is open."""

    def __init__(self, registry: CollectorRegistry, health: Callable[[], Mapping[str, object]]) -> None:
        self._metrics = make_wsgi_app(registry)
        self._health = health
        self._serving: tuple[WSGIServer, Thread] | None = None

    @property
    def port(self) -> int:
        """The port listened on; 0 while closed."""
        return 0 if self._serving is None else self._serving[0].server_port

    def open(self, host: str, port: int) -> None:
        """Begin to answer; raises OSError."""
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        kind = _ThreadingServer6 if family is socket.AF_INET6 else _ThreadingServer
        server: WSGIServer = make_server(
            str(address[0]), port, self._answer, server_class=kind, handler_class=_QuietHandler
        )
        thread = Thread(target=server.serve_forever, name="operator page", daemon=True)
        thread.start()
        self._serving = (server, thread)

    def close(self) -> None:
        """End; blocks until the thread has."""
        if self._serving is not None:
            server, thread = self._serving
            server.shutdown()
            server.server_close()
            thread.join()
            self._serving = None

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ.get("PATH_INFO") != "/healthz":
            page: Iterable[bytes] = self._metrics(environ, start_response)
            return page
        health = self._health()
        status = HTTPStatus.OK if health.get("ready") else HTTPStatus.SERVICE_UNAVAILABLE
        start_response(f"{status.value} {status.phrase}", [_JSON])  # a list of its own: the length is added to it
        return [json.dumps(health).encode() + b"\n"]


class _ThreadingServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _ThreadingServer6(_ThreadingServer):
    address_family = socket.AF_INET6


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the name that the base class gives it
        """Say nothing."""
