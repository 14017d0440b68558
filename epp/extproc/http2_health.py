# SPDX-License-Identifier: Apache-2.0
"""The gRPC health service as calls of our own server."""

from collections.abc import Callable

from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from epp.extproc.health import Health
from epp.extproc.http2.service import Answers, Methods, Outlet
from epp.extproc.http2.status import RpcError, Status

_SERVICE = "grpc.health.v1.Health"


def health_methods(health: Health) -> Methods:
    """Return Check, List and Watch."""
    return {
        f"/{_SERVICE}/Check": lambda _: _Unary(lambda request: _check(health, request)),
        f"/{_SERVICE}/List": lambda _: _Unary(lambda _request: _list(health)),
        f"/{_SERVICE}/Watch": lambda outlet: _Watch(health, outlet),
    }


def _check(health: Health, request: bytes) -> bytes:
    name = _name(request)
    status = health.statuses.get(name)
    if status is None:
        raise RpcError(Status.NOT_FOUND, health.unknown(name))
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
        raise RpcError(Status.INTERNAL, "a message that is no HealthCheckRequest") from error


class _Unary:
    """One message, one answer."""

    silence_timeout = None
    awaits_more = True

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self._answer = answer
        self.done = False

    def receive(self, message: bytes) -> Answers:
        self.done = True
        return [self._answer(message)]

    def resume(self) -> Answers:
        return ()

    def on_silence(self) -> Answers:
        return ()

    def half_close(self) -> Answers:
        raise RpcError(Status.INVALID_ARGUMENT, "a request without a message")

    def give_way(self, _status: Status) -> Answers:
        return ()

    def unreadable(self, error: RpcError) -> None:
        pass

    def close(self) -> None:
        pass


class _Watch:
    """The status of one name, and again whenever it changes."""

    silence_timeout = None
    awaits_more = False
    done = False

    def __init__(self, health: Health, outlet: Outlet) -> None:
        self._health = health
        self._outlet = outlet
        self._name: str | None = None
        self._told: int | None = None
        self._unwatch = health.watch(self._tell)

    def receive(self, message: bytes) -> Answers:
        if self._name is not None:
            raise RpcError(Status.INVALID_ARGUMENT, "a second message")
        self._name = _name(message)
        return self._news()

    def resume(self) -> Answers:
        return ()

    def on_silence(self) -> Answers:
        return ()

    def half_close(self) -> Answers:
        if self._name is None:
            raise RpcError(Status.INVALID_ARGUMENT, "a request without a message")
        return ()

    def give_way(self, _status: Status) -> Answers:
        return ()

    def unreadable(self, error: RpcError) -> None:
        pass

    def close(self) -> None:
        self._unwatch()

    def _tell(self) -> None:
        if self._name is not None:
            for answer in self._news():
                self._outlet.send(answer)
        if not self._health.open:
            self._outlet.finish()

    def _news(self) -> list[bytes]:
        status = self._health.statuses.get(self._name or "", HealthCheckResponse.SERVICE_UNKNOWN)
        if status == self._told:
            return []
        self._told = status
        return [HealthCheckResponse(status=status).SerializeToString()]
