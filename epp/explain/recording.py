# SPDX-License-Identifier: Apache-2.0
"""The recording of one decision, from the pick or the refusal to the end of the response."""

from collections.abc import Mapping

import msgspec

from epp.explain.building import record_of
from epp.explain.record import DecisionRecord, Ending, ShadowRun, Timings
from epp.framework.endpoint import Endpoint
from epp.framework.errors import RequestError
from epp.framework.request import DataKey, Request
from epp.framework.result import SchedulingResult
from epp.framework.snapshot import Snapshot
from epp.routing.director import Cause, Routing
from epp.routing.scheduling import Profile

_DIGITS = 6
_decoder = msgspec.json.Decoder(DecisionRecord)
_encoder = msgspec.json.Encoder()


class Recording:
    """Holds references until the record is built, then the record as bytes."""

    __slots__ = (
        "_config_generation",
        "_ending",
        "_made",
        "_outcome",
        "_profiles",
        "_received_at",
        "_request",
        "_served",
        "_shadows",
        "_snapshot",
        "_timings",
        "_why",
        "at",
        "awaits_shadows",
        "for_",
        "id",
        "is_complete",
        "is_lost",
        "is_queued",
        "is_written",
        "request_id",
    )

    def __init__(
        self,
        record_id: str,
        request: Request,
        outcome: SchedulingResult | RequestError,
        profiles: Mapping[str, Profile],
        *,
        at: float,
        recorded_for: str,
        config_generation: int,
        timings: Timings,
        snapshot: Snapshot | None = None,
    ) -> None:
        """`snapshot` is for a refusal before any profile ran."""
        self.id = record_id
        self.request_id = request.id
        self.at = at
        """Seconds since 1970."""
        self.for_ = recorded_for
        self.is_complete = isinstance(outcome, RequestError)
        """Whether all but results of shadow profiles is known."""
        self.awaits_shadows = False
        """Whether results of shadow profiles are expected."""
        self.is_lost = False
        """Whether its record could not be built."""
        self.is_queued = False
        """Whether it is queued to be built or updated."""
        self.is_written = False
        """Whether it is written to the file."""
        self._request: Request | None = request
        self._received_at = request.received_at
        self._outcome: SchedulingResult | RequestError | None = outcome
        self._profiles: Mapping[str, Profile] | None = profiles
        self._config_generation = config_generation
        self._timings = timings
        self._snapshot = snapshot
        self._ending: Ending | None = None
        self._served: Endpoint | None = None
        self._why = ""
        self._shadows: tuple[ShadowRun, ...] = ()
        self._made = b""

    @property
    def is_made(self) -> bool:
        """Whether its record has been built."""
        return bool(self._made)

    def complete(self, routing: Routing, cause: Cause, now: float) -> None:
        """Record the end of the response; `now` is on the clock."""
        received = self._received_at
        first, ended = routing.first_byte_at, routing.ended_at
        self.is_complete = True
        self._ending = ending_of(routing, cause)
        self._timings = msgspec.structs.replace(
            self._timings,
            first_byte=None if first is None else round(first - received, _DIGITS),
            total=round((now if ended is None else ended) - received, _DIGITS),
        )
        if self._ending.is_fallback:
            self._served = routing.served
            self._why = routing.decision.why(routing.served)

    def add_shadows(self, runs: tuple[ShadowRun, ...]) -> None:
        """Add results of shadow profiles."""
        self._shadows += runs

    def lose(self) -> None:
        """Mark it as lost: its record cannot be built."""
        self.is_lost = True
        self._forget()

    def _forget(self) -> None:
        """Drop the references: a request refers to its recording, and a response may take long."""
        self._request = self._outcome = self._profiles = self._snapshot = None

    def made(self) -> bytes:
        """Build or update the record; return it as JSON."""
        if self._request is not None and self._outcome is not None and self._profiles is not None:
            record = record_of(
                self._request,
                self._outcome,
                self._profiles,
                id=self.id,
                kind="refused" if isinstance(self._outcome, RequestError) else "routed",
                at=self.at,
                snapshot=self._snapshot,
                recorded_for=self.for_,
                config_generation=self._config_generation,
                timings=self._timings,
                ending=self._ending,
                served=self._served,
                shadows=self._shadows,
            )
            self._forget()
        else:
            before = _decoder.decode(self._made)
            record = msgspec.structs.replace(
                before,
                ending=self._ending,
                timings=msgspec.structs.replace(
                    self._timings, queue=before.timings.queue, queue_outcome=before.timings.queue_outcome
                ),
                shadows=self._shadows,
                why=self._why or before.why,
            )
        self._made = _encoder.encode(record)
        return self._made


RECORDING: DataKey[Recording] = DataKey("decision-recording")
"""The recording of a routed request."""


def ending_of(routing: Routing, cause: Cause) -> Ending:
    """Return how a routed request ended."""
    usage, targets = routing.usage, routing.result.targets
    return Ending(
        cause=cause.value,
        status=routing.status,
        served_endpoint=routing.served.name,
        served_address=routing.served.hostport,
        is_fallback=routing.served.id != targets[0].id,
        response_bytes=routing.response_bytes,
        prompt_tokens=None if usage is None else usage.prompt_tokens,
        cached_tokens=None if usage is None else usage.cached_tokens,
        completion_tokens=None if usage is None else usage.completion_tokens,
    )
