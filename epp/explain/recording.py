# SPDX-License-Identifier: Apache-2.0
"""The recording of one decision, from the pick or the refusal to the end of the response."""

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from epp.explain.record import DecisionRecord, Ending, ShadowRun
from epp.framework.request import CACHED_TOKENS_PREDICTED, DataKey
from epp.routing.director import Cause, Routing

_DIGITS = 6
_MOST_BYTES = 1024 * 1024
"""Of a record: large ones have many profiles and plugins, each with some of the endpoints."""
_decoder = msgspec.json.Decoder(DecisionRecord)
_encoder = msgspec.json.Encoder()


@dataclass(slots=True, eq=False)
class Recording:
    """Builds the record once, and then keeps it as bytes: a request refers to its recording as long as it is open."""

    id: str
    request_id: str
    received_at: float
    at: float
    """Seconds since 1970."""
    recorded_for: str
    is_complete: bool
    """Whether all but results of shadow profiles is known."""
    build: Callable[[], DecisionRecord] | None
    """Returns the record at the time of the decision; dropped with all that it refers to after the call."""
    shadows: tuple[ShadowRun, ...] = ()
    awaits_shadows: bool = False
    """Whether results of shadow profiles are expected."""
    is_lost: bool = False
    """Whether its record could not be built."""
    is_queued: bool = False
    """Whether it is queued to be built or updated."""
    is_written: bool = False
    """Whether it is written to the file."""
    data: bytes = b""
    """The record as JSON; empty before it is built."""
    _ending: Ending | None = None
    _times: dict[str, float | None] = field(default_factory=dict)
    """Timings of the response."""
    _why: str = ""

    def complete(self, routing: Routing, cause: Cause, now: float) -> None:
        """Record the end of the response; `now` is on the clock."""
        first, ended = routing.first_byte_at, routing.ended_at
        self.is_complete = True
        self._ending = ending_of(routing, cause)
        self._times = {
            "first_byte": None if first is None else round(first - self.received_at, _DIGITS),
            "total": round((now if ended is None else ended) - self.received_at, _DIGITS),
        }
        if self._ending.is_fallback:
            self._why = routing.decision.why(routing.served)

    def lose(self) -> None:
        """Mark it as lost: its record cannot be built."""
        self.is_lost = True
        self.build = None

    def made(self) -> bytes:
        """Build or update the record; return it as JSON. Raise ValueError for one that is too large."""
        record = _decoder.decode(self.data) if self.build is None else self.build()
        self.build = None
        self.data = _encoder.encode(
            replace(
                record,
                ending=self._ending,
                timings=replace(record.timings, **self._times),
                shadows=self.shadows,
                why=self._why or record.why,
            )
        )
        if len(self.data) > _MOST_BYTES:
            raise ValueError(f"{len(self.data)} bytes are more than {_MOST_BYTES}")
        return self.data


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
        cached_tokens=usage.cached_tokens if usage is not None and routing.tells_cached else None,
        completion_tokens=None if usage is None else usage.completion_tokens,
        predicted_cached_tokens=routing.request.get(CACHED_TOKENS_PREDICTED),
    )
