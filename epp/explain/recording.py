# SPDX-License-Identifier: Apache-2.0
"""The recording of one decision, from the pick or the refusal to the end of the response."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field

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


@dataclass(slots=True, eq=False)
class Recording:
    """Holds references until the record is built, then the record as bytes."""

    id: str
    request: Request | None
    outcome: SchedulingResult | RequestError | None
    profiles: Mapping[str, Profile] | None
    _: KW_ONLY
    at: float
    """Seconds since 1970."""
    recorded_for: str
    config_generation: int
    timings: Timings
    snapshot: Snapshot | None = None
    """For a refusal before any profile ran."""
    request_id: str = field(init=False)
    is_complete: bool = field(init=False)
    """Whether all but results of shadow profiles is known."""
    awaits_shadows: bool = False
    """Whether results of shadow profiles are expected."""
    is_lost: bool = False
    """Whether its record could not be built."""
    is_queued: bool = False
    """Whether it is queued to be built or updated."""
    is_written: bool = False
    """Whether it is written to the file."""
    _received_at: float = field(init=False)
    _ending: Ending | None = None
    _served: Endpoint | None = None
    _why: str = ""
    _shadows: tuple[ShadowRun, ...] = ()
    _data: bytes = b""

    def __post_init__(self) -> None:
        """Copy what is needed of the request after the record is built."""
        assert self.request is not None  # noqa: S101  dropped later
        self.request_id, self._received_at = self.request.id, self.request.received_at
        self.is_complete = isinstance(self.outcome, RequestError)

    @property
    def is_made(self) -> bool:
        """Whether its record has been built."""
        return bool(self._data)

    def complete(self, routing: Routing, cause: Cause, now: float) -> None:
        """Record the end of the response; `now` is on the clock."""
        received = self._received_at
        first, ended = routing.first_byte_at, routing.ended_at
        self.is_complete = True
        self._ending = ending_of(routing, cause)
        self.timings = msgspec.structs.replace(
            self.timings,
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
        self.request = self.outcome = self.profiles = self.snapshot = None

    def made(self) -> bytes:
        """Build or update the record; return it as JSON."""
        if self.request is not None and self.outcome is not None and self.profiles is not None:
            record = record_of(
                self.request,
                self.outcome,
                self.profiles,
                id=self.id,
                kind="refused" if isinstance(self.outcome, RequestError) else "routed",
                at=self.at,
                snapshot=self.snapshot,
                recorded_for=self.recorded_for,
                config_generation=self.config_generation,
                timings=self.timings,
                ending=self._ending,
                served=self._served,
                shadows=self._shadows,
            )
            self._forget()
        else:
            before = _decoder.decode(self._data)
            record = msgspec.structs.replace(
                before,
                ending=self._ending,
                timings=msgspec.structs.replace(
                    self.timings, queue=before.timings.queue, queue_outcome=before.timings.queue_outcome
                ),
                shadows=self._shadows,
                why=self._why or before.why,
            )
        self._data = _encoder.encode(record)
        return self._data


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
