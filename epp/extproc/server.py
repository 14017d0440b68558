# SPDX-License-Identifier: Apache-2.0
"""The ext_proc service and the health service of the picker: start, drain and stop."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from epp.extproc.budgets import Budgets
from epp.extproc.http2.service import HEALTH, Answers, Call, Methods, Outlet, RpcError, Status
from epp.extproc.open_streams import SessionMaker, SessionSource, StreamObserver
from epp.extproc.settings import ServerSettings, Transport
from epp.extproc.wire import SERVICE
from epp.runtime.addresses import parse_host_port, shown_listening
from epp.runtime.supervisor import first_of

if TYPE_CHECKING:
    from epp.extproc.grpcio_carrier import GrpcioCarrier
    from epp.extproc.http2.server import GrpcServer
    from epp.extproc.http2_carrier import Acceptor, Http2Carrier


LIVENESS = "liveness"
READINESS = "readiness"
PROBED_FOR_BOTH = "inference-extension"
"""The name that llm-d's chart gives to the liveness probe and the readiness probe of a single replica."""
_READY_NAMES = ("", READINESS, SERVICE)


class Health:
    """The status of each name: `liveness` is always SERVING, the other names from readiness to draining.

    `inference-extension` answers both probes of a single replica. It stays SERVING while the picker drains, because a
    failed liveness probe would restart a container with open streams. It is not SERVING before readiness, because a
    picker without a pool must get no requests.

    With leader election, a follower that could serve is on standby: NOT_SERVING under the names of readiness, SERVING
    as `inference-extension`, because a failed liveness probe would restart it. With several replicas, llm-d's chart
    probes `liveness` and `readiness`.

    All names stay SERVING while no endpoint can be reached: on NOT_SERVING, a gateway would answer 503 without the
    reason or, with FailOpen, pick an endpoint past all filters. `/healthz` reports the problem instead.
    """

    def __init__(self) -> None:
        waiting = dict.fromkeys((PROBED_FOR_BOTH, *_READY_NAMES), _status(ready=False))
        self.statuses: dict[str, int] = {LIVENESS: HealthCheckResponse.SERVING, **waiting}
        self.watchers: set[Callable[[], None]] = set()
        """Callbacks for changes of a status and for `close`."""
        self.open = True
        """Whether watches continue; False once the server closes."""

    def set_ready(self, *, ready: bool) -> None:
        """Set whether new requests are served, and notify watchers."""
        self.statuses.update(dict.fromkeys(_READY_NAMES, _status(ready=ready)))
        if ready:
            self.statuses[PROBED_FOR_BOTH] = HealthCheckResponse.SERVING
        self._notify()

    def stand_by(self) -> None:
        """Report a follower: able to serve, but not the leader."""
        self.statuses[PROBED_FOR_BOTH] = HealthCheckResponse.SERVING
        self.set_ready(ready=False)

    def close(self) -> None:
        """End every watch: the server closes."""
        self.open = False
        self._notify()

    def _notify(self) -> None:
        for changed in list(self.watchers):
            changed()


def _status(*, ready: bool) -> int:
    return HealthCheckResponse.SERVING if ready else HealthCheckResponse.NOT_SERVING


def health_methods(health: Health) -> Methods:
    """Return Check, List and Watch."""
    return {
        f"/{HEALTH}/Check": lambda _: _Unary(lambda request: _check(health, request)),
        f"/{HEALTH}/List": lambda _: _Unary(lambda _request: _list(health)),
        f"/{HEALTH}/Watch": lambda outlet: _Watch(health, outlet),
    }


def _check(health: Health, request: bytes) -> bytes:
    name = _name(request)
    status = health.statuses.get(name)
    if status is None:
        raise RpcError(Status.NOT_FOUND, f"no service {name!r}: {sorted(health.statuses)}")
    return HealthCheckResponse(status=status).SerializeToString()


def _list(health: Health) -> bytes:
    statuses = {name: HealthCheckResponse(status=status) for name, status in health.statuses.items()}
    response = health_pb2.HealthListResponse(statuses=statuses)  # type: ignore[attr-defined]  # younger than the stubs
    whole: bytes = response.SerializeToString()
    return whole


def _name(request: bytes) -> str:
    try:
        return HealthCheckRequest.FromString(request).service
    except DecodeError as error:
        raise RpcError(Status.INTERNAL, "the message is not a HealthCheckRequest") from error


class _Unary(Call):
    awaits_more = True
    done = False

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self._answer = answer

    def receive(self, message: bytes) -> Answers:
        self.done = True
        return [self._answer(message)]

    def half_close(self) -> Answers:
        raise RpcError(Status.INVALID_ARGUMENT, "the request has no message")


class _Watch(Call):
    """A call that sends the status of one name now and after each change."""

    def __init__(self, health: Health, outlet: Outlet) -> None:
        self._health = health
        self._outlet = outlet
        self._name: str | None = None
        self._last_sent: int | None = None
        health.watchers.add(self._send_changes)

    def receive(self, message: bytes) -> Answers:
        if self._name is not None:
            raise RpcError(Status.INVALID_ARGUMENT, "the request has a second message")
        self._name = _name(message)
        return self._changes()

    def half_close(self) -> Answers:
        if self._name is None:
            raise RpcError(Status.INVALID_ARGUMENT, "the request has no message")
        return ()

    def close(self) -> None:
        self._health.watchers.discard(self._send_changes)

    def _send_changes(self) -> None:
        if self._name is not None:
            for answer in self._changes():
                self._outlet.send(answer)
        if not self._health.open:
            self._outlet.finish()

    def _changes(self) -> list[bytes]:
        status = self._health.statuses.get(self._name or "", HealthCheckResponse.SERVICE_UNKNOWN)
        if status == self._last_sent:
            return []
        self._last_sent = status
        return [HealthCheckResponse(status=status).SerializeToString()]


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
