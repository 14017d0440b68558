# SPDX-License-Identifier: Apache-2.0
"""The ext_proc server of the picker: start, drain and stop."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from epp.extproc.budgets import Budgets
from epp.extproc.health import Health
from epp.extproc.open_streams import SessionMaker, SessionSource, StreamObserver
from epp.extproc.settings import ServerSettings, Transport
from epp.runtime.addresses import parse_host_port, shown_listening
from epp.runtime.supervisor import first_of

if TYPE_CHECKING:
    from epp.extproc.grpcio_carrier import GrpcioCarrier
    from epp.extproc.http2.server import GrpcServer
    from epp.extproc.http2_carrier import Acceptor, Http2Carrier


_log = structlog.get_logger()
_FLUSH_SECONDS = 1.0
_REFUSAL_SECONDS = 2.0
_POLL_SECONDS = 0.01


class ExtProcServer:
    """Listens, answers health checks, drains and stops.

    With an acceptor, other processes have the connections and streams. Without an address, it adopts connections
    through its `http2` server. `Transport.GRPCIO` supports neither.
    """

    def __init__(
        self,
        sessions: SessionMaker,
        settings: ServerSettings,
        observer: StreamObserver | None = None,
        acceptor: "Acceptor | None" = None,
    ) -> None:
        self.budgets = Budgets(settings.budgets)
        """Budgets of gateways and their usage; may be read in any thread."""
        self._settings = settings
        self._health = Health()
        self._sessions = SessionSource(sessions, self.budgets, observer)
        self.protocol_errors: Mapping[str, int] = self._sessions.faults.counts
        """Streams that ended with a protocol error, by kind; may be read in any thread."""
        self._streams = self._sessions.streams if acceptor is None else acceptor.streams
        self._carrier = _carrier(self._sessions, self._health, settings, acceptor)

    @property
    def port(self) -> int:
        """The port in use; 0 for a unix socket."""
        return self._carrier.port

    @property
    def health_port(self) -> int:
        """The port of the separate health service; 0 without one."""
        return self._carrier.health_port

    async def start(self) -> None:
        """Listen, not ready yet; raises ConfigurationError when an address is taken or a certificate is bad."""
        await self._carrier.start()

    @property
    def addresses(self) -> Mapping[str, str]:
        """Addresses of the started servers."""
        bound = {"ext_proc": (self._settings.address, self.port)} if self._settings.address else {}
        if self._settings.health_address is not None:
            bound["health"] = self._settings.health_address, self.health_port
        return {
            name: shown_listening(parse_host_port(address, min_port=0).host, port) if port else address
            for name, (address, port) in bound.items()
        }

    @property
    def open_streams(self) -> int:
        return self._streams.count

    @property
    def http2(self) -> "GrpcServer":
        assert self._carrier.server is not None  # noqa: S101  not with an acceptor or grpcio
        return self._carrier.server

    def set_ready(self, *, ready: bool) -> None:
        self._health.set_ready(ready=ready)

    def stand_by(self) -> None:
        """Answer health checks as a follower: another replica is the leader."""
        self._health.stand_by()

    async def drain(self, most_seconds: float, quiet_seconds: float, enough: asyncio.Event) -> None:
        """Report not ready; serve until no stream was open for `quiet_seconds`, the time is up, or `enough` is set.

        New streams are still served: a gateway opens them until its next health check.
        """
        self._health.set_ready(ready=False)
        await first_of(self._streams.quiet(quiet_seconds), enough.wait(), most_seconds=most_seconds)

    async def streams_ended(self, count: int) -> None:
        """Wait until this number of open streams has ended, at most two seconds."""
        left = self.open_streams - count
        with suppress(TimeoutError):
            async with asyncio.timeout(_REFUSAL_SECONDS):
                while self.open_streams > left:  # noqa: ASYNC110  once, at the end of the process
                    await asyncio.sleep(_POLL_SECONDS)

    async def stop(self) -> None:
        self._health.set_ready(ready=False)
        self._health.close()
        cut = self._sessions.streams.count
        await self._carrier.stop(0 if cut else _FLUSH_SECONDS, _FLUSH_SECONDS)  # time for the last replies
        if cut:
            _log.info("streams cut", streams=cut)


def _carrier(
    sessions: SessionSource, health: Health, settings: ServerSettings, acceptor: "Acceptor | None"
) -> "GrpcioCarrier | Http2Carrier":
    if settings.transport is Transport.GRPCIO:
        from epp.extproc.grpcio_carrier import GrpcioCarrier  # noqa: PLC0415  14 MB, only for this transport

        return GrpcioCarrier(sessions, health, settings)
    from epp.extproc.http2_carrier import Http2Carrier  # noqa: PLC0415  only for the other transport

    return Http2Carrier(sessions, health, settings, acceptor)
