# SPDX-License-Identifier: Apache-2.0
"""The gRPC health service of the picker."""

from collections.abc import Callable

from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from epp.extproc.http2.service import HEALTH, Answers, Call, Methods, Outlet, RpcError, Status
from epp.extproc.wire import SERVICE

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
