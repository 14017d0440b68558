# SPDX-License-Identifier: Apache-2.0
"""Records decisions for failed requests, for a sample, and for requests with the header of records."""

import asyncio
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import structlog
from msgspec.structs import replace
from prometheus_client.registry import CollectorRegistry

from epp.explain.building import MOST_NAME, RECORDING, Recording, record_of
from epp.explain.record import ShadowRun, Timings
from epp.explain.storage import DecisionFile, Kept, Ring
from epp.framework.clock import Clock
from epp.framework.errors import RequestError
from epp.framework.headers import DECISION_RECORD, REQUEST_ID
from epp.framework.messages import printable
from epp.framework.request import Request, RequestBody
from epp.framework.result import SchedulingResult
from epp.framework.snapshot import Snapshot
from epp.routing.director import Cause, DirectorObserver, Refusal, Routing
from epp.routing.director.incoming_request import path_of
from epp.routing.scheduling.profile import Profile
from epp.telemetry.families import Computed, Row, rows_of
from epp.telemetry.settings import DecisionSettings

SAMPLED, ASKED, FAILED = "sampled", "asked", "failed"
SHARE = 0.1
"""Share of the event loop's time that building records may take."""
_MOST_WAITING = 256
"""Limit on decisions whose records are not built yet, because each refers to a snapshot."""
_MOST_OPEN = 2048
"""Limit on recorded requests whose response has not ended."""
_FAILURES_PER_SECOND = 10.0
_MOST_FAILURES = 50.0
"""Maximum burst of recorded failures."""
_SERVER_ERROR = 500
_NATURAL = Cause.NATURAL  # a constant, because attribute access and hash of an enum member are slow
_FAILED_BY = frozenset({Cause.ERROR, Cause.SERVER_LOST, Cause.EVICTED})
_TRUE = frozenset({"true", "1"})
_SEEDS = 2**64

Keep: TypeAlias = Callable[[Kept], None]
"""`Recorder.keep`, here or in another process."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Setup:
    """The configuration and pool in effect."""

    profiles: Callable[[], Mapping[str, Profile]]
    generation: Callable[[], int]
    snapshot: Callable[[], Snapshot]


class Recorder(DirectorObserver):
    """Records failed and refused requests; `run` builds the records."""

    def __init__(self, settings: DecisionSettings, clock: Clock, setup: Setup, send: Keep | None = None) -> None:
        """Raise ConfigurationError for a file that cannot be written.

        `send` passes records to `keep` of the recorder in another process; by default they are kept here.
        """
        self.ring = Ring(settings.buffer, settings.buffer_bytes)
        self.file = (
            None
            if settings.file is None or send is not None
            else DecisionFile(settings.file, most_bytes=settings.file_bytes, count=settings.file_count)
        )
        self.recorded: Counter[str] = Counter({SAMPLED: 0, ASKED: 0, FAILED: 0})
        """Number of decisions that were kept in this process, by reason."""
        self.lost: Counter[str] = Counter({"busy": 0, "rate": 0, "error": 0})
        """Number of decisions that were not recorded, by reason: too many at a time, too many failures, or an error."""
        self._settings = settings
        self._clock = clock
        self._setup = setup
        self._threshold = int(settings.sample_rate * _SEEDS)
        self._keep = send or self.keep
        self._prefix = secrets.token_hex(4)
        self.prefix_key = secrets.token_bytes(32) if settings.prefixes else b""
        """Key of the hashes of prompts, the same in all processes of a picker; empty for no hashes."""
        self._number = 0
        self._open = 0
        self._allowance = _MOST_FAILURES
        self._allowed_at = clock.now()
        self._waiting: deque[Recording] = deque()
        self._unwritten: dict[Recording, Kept] = {}
        """Complete records that wait for shadow profiles, as many as the configuration allows."""
        self._work_available = asyncio.Event()

    def keep(self, kept: Kept) -> None:
        """Store a record, or a newer version of a stored one; write a final one to the file."""
        if kept.new_for:
            self.recorded[kept.new_for] += 1
            self.ring.add(kept)
        else:
            self.ring.update(kept.id, kept.data)
        if kept.is_final and self.file is not None:
            self.file.write(kept.data)

    def completed(self, routing: Routing, cause: Cause) -> None:
        if routing.status < _SERVER_ERROR and (cause is _NATURAL or cause not in _FAILED_BY):
            return
        if self._allow():
            profiles = routing.pipeline.scheduler.profiles
            recording = self._recording(routing.request, routing.result, profiles, FAILED, Timings())
            recording.complete(routing, cause, self._clock.now())
            self._enqueue(recording)

    def refused(self, refusal: Refusal) -> None:
        request = refusal.request
        reason = FAILED if request is None else self._reason_for(request) or FAILED
        if len(self._waiting) >= _MOST_WAITING:
            self.lost["busy"] += 1
        elif reason is not FAILED or self._allow():
            seconds = refusal.seconds
            if request is None:
                # refused before its body was read
                headers = refusal.headers
                body = RequestBody(model=refusal.model)
                request = Request(headers.get(REQUEST_ID, ""), body, headers, path_of(headers))
            elif not seconds:
                seconds = self._clock.now() - request.received_at
            timings = Timings(total=round(seconds, 6))
            snapshot = self._setup.snapshot() if refusal.error.scheduling is None else None
            profiles = self._setup.profiles()
            self._enqueue(self._recording(request, refusal.error, profiles, reason, timings, snapshot=snapshot))

    def expect_shadows(self, request: Request) -> None:
        """Write the record of a request to the file only after `add_shadows`, if there is a record."""
        recording = request.get(RECORDING)
        if recording is not None:
            recording.awaits_shadows = True

    def add_shadows(self, request: Request, runs: Sequence[ShadowRun]) -> None:
        """Add results of shadow profiles to the record of a request, if there is a record."""
        recording = request.get(RECORDING)
        if recording is not None:
            recording.awaits_shadows = False
            recording.shadows += tuple(runs)
            self._enqueue(recording)

    async def run(self) -> None:
        """Build records until cancelled, in a share of the event loop's time."""
        while True:
            await self._work_available.wait()
            started = time.perf_counter()
            self._make_next()
            await asyncio.sleep((time.perf_counter() - started) * (1 / SHARE - 1))

    async def close(self) -> None:
        """Build and write all outstanding records, without waiting for shadow profiles."""
        while self._waiting:
            self._make_next()
        for kept in self._unwritten.values():
            self._keep(kept._replace(new_for="", is_final=True))
        self._unwritten.clear()
        if self.file is not None:
            await asyncio.to_thread(self.file.close)

    def _reason_for(self, request: Request) -> str:
        """Return the reason to record a request that has not failed; empty for none."""
        if self._settings.asked_by_header and request.headers.get(DECISION_RECORD, "").lower() in _TRUE:
            return ASKED
        return SAMPLED if request.seed < self._threshold else ""

    def _allow(self) -> bool:
        now = self._clock.now()
        gained = (now - self._allowed_at) * _FAILURES_PER_SECOND
        self._allowance, self._allowed_at = min(self._allowance + gained, _MOST_FAILURES), now
        if self._allowance < 1:
            self.lost["rate"] += 1
            return False
        if len(self._waiting) >= _MOST_WAITING:
            self.lost["busy"] += 1
            return False
        self._allowance -= 1
        return True

    def _recording(
        self,
        request: Request,
        outcome: SchedulingResult | RequestError,
        profiles: Mapping[str, Profile],
        recorded_for: str,
        timings: Timings,
        *,
        snapshot: Snapshot | None = None,
    ) -> Recording:
        self._number += 1
        record_id, at = f"{self._prefix}-{self._number}", self._clock.utc()
        is_refused = isinstance(outcome, RequestError)
        if not is_refused:
            timings = replace(timings, decision=round(self._clock.now() - request.received_at, 6))
        build = partial(
            record_of,
            request,
            outcome,
            profiles,
            id=record_id,
            kind="refused" if is_refused else "routed",
            at=at,
            snapshot=snapshot,
            recorded_for=recorded_for,
            config_generation=self._setup.generation(),
            timings=timings,
            prefix_key=self.prefix_key,
        )
        return Recording(record_id, request.id, request.received_at, at, recorded_for, is_refused, build)

    def _enqueue(self, recording: Recording) -> None:
        if not (recording.is_queued or recording.is_lost):
            recording.is_queued = True
            self._waiting.append(recording)
            self._work_available.set()

    def _make_next(self) -> None:
        recording = self._waiting.popleft()
        if not self._waiting:
            self._work_available.clear()
        recording.is_queued = False
        is_new = not recording.data
        try:
            data = recording.made()
        except Exception as error:  # noqa: BLE001  a record must not stop the others
            recording.is_lost, recording.build = True, None
            self._unwritten.pop(recording, None)
            self.lost["error"] += 1
            if self.lost["error"] == 1:
                _log.exception("decision not recorded", error=f"{type(error).__name__}: {error}")
            return
        is_final = self._settings.file is not None and recording.is_complete and not recording.is_written
        request_id, new_for = printable(recording.request_id, MOST_NAME), recording.recorded_for if is_new else ""
        kept = Kept(recording.id, request_id, recording.at, data, new_for)
        self._unwritten.pop(recording, None)
        if is_final and recording.awaits_shadows:
            self._unwritten[recording] = kept
        elif is_final:
            recording.is_written = True
            kept = kept._replace(is_final=True)
        self._keep(kept)


class SamplingRecorder(Recorder):
    """A recorder that also records a sample of all requests, and requests with the header of records."""

    def routed(self, request: Request, result: SchedulingResult, scheduling_seconds: float) -> None:
        reason = self._reason_for(request)
        if not reason:
            return
        if len(self._waiting) >= _MOST_WAITING or self._open >= _MOST_OPEN:
            self.lost["busy"] += 1
            return
        timings = Timings(scheduling=round(scheduling_seconds, 6))
        recording = self._recording(request, result, self._setup.profiles(), reason, timings)
        request.put(RECORDING, recording)
        self._open += 1
        self._enqueue(recording)

    def completed(self, routing: Routing, cause: Cause) -> None:
        recording = routing.request.get(RECORDING)
        if recording is None:
            super().completed(routing, cause)
            return
        self._open -= 1
        recording.complete(routing, cause, self._clock.now())
        self._enqueue(recording)


def recorder_of(settings: DecisionSettings, clock: Clock, setup: Setup, send: Keep | None = None) -> Recorder:
    """Return the cheapest recorder for the settings; raises ConfigurationError."""
    kind = SamplingRecorder if settings.records_routed else Recorder
    return kind(settings, clock, setup, send)


def show_records(registry: CollectorRegistry, recorder: Recorder) -> None:

    def lost() -> Sequence[Row]:
        return rows_of({**recorder.lost, "file": 0 if recorder.file is None else recorder.file.lost})

    texts = {"llm_d_epp_decision_records_total": "Recorded decisions by reason: sampled, asked or failed."}
    Computed(registry, ("recorded_for",), texts, lambda: rows_of(recorder.recorded))
    texts = {
        "llm_d_epp_decision_records_lost_total": "Lost decision records by reason: busy, too little time; rate, too "
        "many failures in a second; error, an error of a plugin or of the picker; file, not written to --decision-file."
    }
    Computed(registry, ("reason",), texts, lost)
    texts = {"llm_d_epp_decision_buffer_bytes": "Size of the decisions that are kept in memory."}
    Computed(registry, (), texts, lambda: [((), (recorder.ring.size_bytes,))])
