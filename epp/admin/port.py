# SPDX-License-Identifier: Apache-2.0
"""The listener of the admin port."""

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import structlog

from epp.admin.access import Access, is_loopback
from epp.admin.answers import AdminError
from epp.admin.routes import MOST_BYTES, Route, find, is_for_all, largest_body
from epp.admin.token_file import TokenFile
from epp.framework.errors import ConfigurationError
from epp.telemetry.connection_series import ConnectionCounts, Cut
from epp.telemetry.http_request import HttpRequest
from epp.telemetry.http_thread import Answer, HttpLimits, HttpThread

LIMITS = HttpLimits(connections=64, body_bytes=MOST_BYTES, body_seconds=5.0)

_REFUSED = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSettings:
    """Where the admin port is, and who may ask there."""

    host: str = "127.0.0.1"
    """An IP address."""
    port: int
    """0 for any free one."""
    token_file: Path | None = None
    """File with the token that clients have to send; None for none, on this machine only."""


class AdminPort:
    """Served from its own thread."""

    def __init__(
        self, settings: AdminSettings, limits: HttpLimits = LIMITS, counts: ConnectionCounts | None = None
    ) -> None:
        """Prepare; raises ConfigurationError for a port that would be open to others without a token."""
        if settings.token_file is None and not is_loopback(settings.host):
            raise ConfigurationError(
                f"--admin-host: {settings.host} can be reached from other machines, and there is no token: "
                "add --admin-token-file, or leave --admin-host out"
            )
        self.settings = settings
        self._access = Access(None if settings.token_file is None else TokenFile(settings.token_file))
        self._limits = limits
        self._counts = counts or ConnectionCounts()
        self._server: HttpThread | None = None

    @property
    def port(self) -> int:
        """The port listened on; 0 while closed."""
        return 0 if self._server is None else self._server.port

    def open(self, routes: Sequence[Route]) -> None:
        """Listen and serve; raises OSError."""
        table = tuple(routes)

        async def answer(request: HttpRequest) -> Answer:
            try:
                self._access.check(request, needs_token=not is_for_all(table, request))
                route, rest = find(table, request)
                return await route.answer(request, rest)
            except AdminError as error:
                if error.status in _REFUSED:
                    self._counts.cut(Cut.UNAUTHORIZED)
                return error.answer
            except Exception as error:  # noqa: BLE001  other requests are still answered
                _log.exception("admin port failed", path=request.path)
                text = f"{type(error).__name__}: see the log"
                return AdminError(HTTPStatus.INTERNAL_SERVER_ERROR, "Internal", text).answer

        def body_limit(request: HttpRequest) -> int:
            try:
                self._access.check(request)
            except AdminError:
                return 0  # much is read only of those who may ask
            return largest_body(table, request)

        self._server = HttpThread(
            self.settings.host,
            self.settings.port,
            answer,
            self._limits,
            name="admin port",
            counts=self._counts,
            body_limit=body_limit,
        )

    def close(self) -> None:
        """Stop serving; blocks until the thread has ended."""
        if self._server is not None:
            self._server.close()
            self._server = None
