# SPDX-License-Identifier: Apache-2.0
"""Health of the picker, under the names that gateways and probes ask for."""

from collections.abc import Callable, Mapping

from grpc_health.v1.health_pb2 import HealthCheckResponse

from epp.extproc.wire import SERVICE

LIVENESS = "liveness"
READINESS = "readiness"
PROBED_FOR_BOTH = "inference-extension"
"""The name that llm-d's chart gives to the liveness probe and the readiness probe of a single replica."""
_READY_NAMES = ("", READINESS, SERVICE)


class Health:
    """`liveness` serves as long as the process does; the other names from readiness to draining.

    `inference-extension` goes on serving while the picker drains: it answers a liveness probe too, and a failed one
    restarts a container that still has streams. Before readiness it does not serve, as it answers a readiness probe
    too: a picker without a pool must get no requests, and loses nothing in a restart.

    With leader election, a follower that could serve stands by: it does not serve under the names of readiness, and
    serves as `inference-extension`, since a failed liveness probe would restart it for no fault of its own. Of several
    replicas, llm-d's chart probes `liveness` and `readiness`.

    All of them go on serving while no endpoint can be reached: a gateway that saw NOT_SERVING would answer a bare 503
    without the reason, or with FailOpen pick by itself, past all filters. `/healthz` says so instead.
    """

    def __init__(self) -> None:
        waiting = dict.fromkeys((PROBED_FOR_BOTH, *_READY_NAMES), _status(ready=False))
        self._status = {LIVENESS: HealthCheckResponse.SERVING, **waiting}
        self._watchers: dict[object, Callable[[], None]] = {}
        self.open = True
        """Whether watches continue; False once the server closes."""

    @property
    def statuses(self) -> Mapping[str, int]:
        """The status of each name."""
        return self._status

    def set_ready(self, *, ready: bool) -> None:
        """Set whether new requests are served, and notify watchers."""
        self._status.update(dict.fromkeys(_READY_NAMES, _status(ready=ready)))
        if ready:
            self._status[PROBED_FOR_BOTH] = HealthCheckResponse.SERVING
        self._notify()

    def stand_by(self) -> None:
        """Report that new requests could be served, and are to go to another replica."""
        self._status[PROBED_FOR_BOTH] = HealthCheckResponse.SERVING
        self.set_ready(ready=False)

    def close(self) -> None:
        """End every watch: the server closes."""
        self.open = False
        self._notify()

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` whenever a status may have changed; return what ends that."""
        key = object()
        self._watchers[key] = changed

        def unwatch() -> None:
            self._watchers.pop(key, None)

        return unwatch

    def unknown(self, name: str) -> str:
        """Return a sentence on a name that has no status."""
        return f"no service {name!r}: {sorted(self._status)}"

    def _notify(self) -> None:
        for changed in list(self._watchers.values()):
            changed()


def _status(*, ready: bool) -> int:
    return HealthCheckResponse.SERVING if ready else HealthCheckResponse.NOT_SERVING
