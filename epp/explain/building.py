# SPDX-License-Identifier: Apache-2.0
"""The record of a decision: built from the results of its scheduling, and completed by the end of its response."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from itertools import islice
from typing import Any, Literal, TypeAlias
from uuid import uuid4

import msgspec
import numpy as np
from msgspec.structs import replace

from epp.admission.flow_control.settings import QUEUEING_OUTCOME
from epp.explain.record import (
    VERSION,
    Asked,
    DecisionRecord,
    Ending,
    Failure,
    Pick,
    Prefix,
    ProfileRun,
    Seen,
    ShadowRun,
    Timings,
)
from epp.explain.runs import MOST_LISTED, before_filters, cost_of, number, profile_run
from epp.framework.accelerators.selection import ACCELERATOR_SELECTION
from epp.framework.candidates import Candidates
from epp.framework.errors import InternalError, RequestError
from epp.framework.expected_times import target_seconds
from epp.framework.headers import OBJECTIVE, SLO_TPOT_MS, SLO_TTFT_MS
from epp.framework.messages import printable, shown_path
from epp.framework.quotas import TENANT
from epp.framework.request import BYTES_PER_TOKEN, CACHED_TOKENS_PREDICTED, PROMPT_TOKENS, SESSION_ID, DataKey, Request
from epp.framework.result import FailedScheduling, ProfileAttempt, ProfileResult, SchedulingResult
from epp.framework.snapshot import METRICS_AT, Snapshot
from epp.routing.director import Cause, Decision, Routing, Simulated, Simulation
from epp.routing.scheduling.profile import Profile

MOST_NAME = 128
"""Maximum length of a name in characters; clients may choose names."""
_MOST_TEXT = 300
PREFIX_BLOCK_TOKENS = 64
_MOST_PREFIX_BLOCKS = 2048
_UNSAFE_BITS = 11
"""Bits to drop of 64: programs read JSON numbers as doubles, which are exact only up to 53 bits."""
_NO_TIMINGS = Timings()
_DIGITS = 6
_MOST_BYTES = 1024 * 1024
"""Maximum size of a record; many profiles and plugins, with some endpoints each, make it large."""
_decoder = msgspec.json.Decoder(DecisionRecord)
_encoder = msgspec.json.Encoder()
Outcome: TypeAlias = SchedulingResult | RequestError


def record_of(
    request: Request,
    outcome: Outcome,
    profiles: Mapping[str, Profile],
    *,
    id: str,  # noqa: A002  the field's name
    kind: Literal["routed", "refused", "simulated"],
    at: float,
    snapshot: Snapshot | None = None,
    recorded_for: str = "",
    config_generation: int = 0,
    timings: Timings = _NO_TIMINGS,
    prefix_key: bytes = b"",
) -> DecisionRecord:
    """Return the record of a request that was routed, or refused with an error.

    `profiles` are the profiles that ran; their plugins give the reasons. `at` is the time of the decision, in seconds
    since 1970. `snapshot` is used if no profile ran. The queueing time is taken from the request. With `prefix_key`,
    the record has hashes of the prompt.
    """
    pick, failure = None, None
    first: ProfileResult | ProfileAttempt | None
    if isinstance(outcome, RequestError):
        failure = failure_of(outcome)
        why = printable(_detail(outcome) or outcome.message, _MOST_TEXT)
        runs = {} if outcome.scheduling is None else outcome.scheduling.profiles
        first = next(iter(runs.values()), None)
    else:
        pick = _pick(request, outcome)
        why = Decision(request, outcome).why()
        first = outcome.primary
    considered = None if first is None else before_filters(first)
    if considered is not None:
        snapshot = considered.snapshot
    stay = request.get(QUEUEING_OUTCOME)
    if stay is not None and stay.waited:
        timings = replace(timings, queue=round(stay.seconds, 6), queue_outcome=stay.outcome.value)
    return DecisionRecord(
        version=VERSION,
        id=id,
        kind=kind,
        request_id=printable(request.id, MOST_NAME),
        at=datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        recorded_for=recorded_for,
        config_generation=config_generation,
        asked=_asked(request),
        seen=None if snapshot is None else _seen(request, snapshot, considered),
        profiles=tuple(_runs(request, outcome, profiles)),
        pick=pick,
        failure=failure,
        timings=timings,
        why=why,
        prefix=_prefix(request, prefix_key) if prefix_key else None,
    )


def failure_of(error: RequestError) -> Failure:
    return Failure(
        type=type(error).__name__,
        code=error.code,
        status=error.status,
        reason=error.reason or "",
        message=printable(error.message, _MOST_TEXT),
        detail=printable(_detail(error), _MOST_TEXT),
    )


def _detail(error: RequestError) -> str:
    return error.detail or (str(error) if isinstance(error, InternalError) else "")


def _asked(request: Request) -> Asked:
    addresses = () if request.subset is None else tuple(sorted(request.subset.addresses))
    tenant = request.get(TENANT)
    return Asked(
        path=shown_path(request.path),
        model=printable(request.body.model, MOST_NAME),
        target_model=printable(request.model, MOST_NAME) if request.rewrites_model else "",
        rewrite=printable(request.rewritten_by, MOST_NAME),
        objective=printable(request.objective or request.headers.first_of(*OBJECTIVE) or "", MOST_NAME),
        priority=request.priority,
        fairness_id=printable(request.fairness_id, MOST_NAME),
        tenant="" if tenant is None else printable(tenant.name, MOST_NAME),
        size_bytes=request.size_bytes,
        streaming=request.body.streaming,
        subset=tuple(printable(address) for address in addresses[:MOST_LISTED]),
        subset_more=max(len(addresses) - MOST_LISTED, 0),
        seed=f"{request.seed:016x}",
        prompt_tokens=request.prompt_tokens,
        ttft_slo=number(target_seconds(request.headers, SLO_TTFT_MS)),
        tpot_slo=number(target_seconds(request.headers, SLO_TPOT_MS)),
    )


def _prefix(request: Request, key: bytes) -> Prefix:
    tokens, session = request.get(PROMPT_TOKENS), request.get(SESSION_ID)
    prompt = request.body.prompt if tokens is None or tokens.ids is None else tokens.ids.astype("<u4").tobytes()
    size = PREFIX_BLOCK_TOKENS * BYTES_PER_TOKEN
    name = f"{request.model}\0{request.body.cache_salt}".encode(errors="surrogatepass")
    running = blake2b(name, key=key, digest_size=8)
    blocks = []
    for end in range(size, min(len(prompt), _MOST_PREFIX_BLOCKS * size) + 1, size):
        running.update(prompt[end - size : end])
        blocks.append(int.from_bytes(running.copy().digest()) >> _UNSAFE_BITS)
    hashed = blake2b(session.encode(errors="surrogatepass"), key=key, digest_size=8).hexdigest() if session else ""
    return Prefix(block_tokens=PREFIX_BLOCK_TOKENS, blocks=tuple(blocks), session=hashed)


def _seen(request: Request, snapshot: Snapshot, considered: Candidates | None) -> Seen:
    available = snapshot.available
    eligible = len(available)
    if request.subset is not None:
        eligible = int(np.count_nonzero(request.subset.mask(snapshot, available)))
    return Seen(
        generation=snapshot.generation,
        age_seconds=0.0 if considered is None else _age(snapshot, considered.now),
        endpoints=len(snapshot.slots),
        available=len(available),
        eligible=eligible,
        screened=0 if considered is None else len(considered),
    )


def _age(snapshot: Snapshot, now: float) -> float:
    """Return the seconds since the last report of any endpoint; 0 without a report."""
    reported = snapshot.column(METRICS_AT)[snapshot.slots]
    known = reported[np.isfinite(reported)]
    age = number(now - known.max()) if len(known) else None
    return 0.0 if age is None else max(age, 0.0)


def _runs(request: Request, outcome: Outcome, profiles: Mapping[str, Profile]) -> Iterator[ProfileRun]:
    trace: SchedulingResult | FailedScheduling
    if isinstance(outcome, RequestError):
        trace, primary = outcome.scheduling or FailedScheduling({}, {}), ""
    else:
        trace, primary = outcome, outcome.primary.profile
    for name, result in trace.profiles.items():
        run, error = result, trace.errors.get(name)
        if run is None and error is not None:
            run = error.attempt
        if error is None and isinstance(run, ProfileAttempt) and isinstance(outcome, RequestError):
            error = outcome
        failure = None if error is None else failure_of(error)
        if run is None:
            yield ProfileRun(name=name, failure=failure)
        else:
            yield profile_run(request, name, run, profiles.get(name), primary=name == primary, failure=failure)


def _pick(request: Request, result: SchedulingResult) -> Pick:
    destination, primary = result.destination, result.primary
    targets = [target.name for target in islice(destination.targets, MOST_LISTED)]
    decision = Decision(request, result)
    asked = request.get(ACCELERATOR_SELECTION)
    share = decision.cached_share
    return Pick(
        endpoint=targets[0],
        address=destination.addresses[0],
        fallbacks=tuple(targets[1:]),
        addresses=tuple(islice(destination.addresses, MOST_LISTED)),
        headers=tuple(sorted(destination.headers)),
        aggregator=result.aggregator,
        accelerator=decision.accelerator,
        accelerator_model=decision.tag.model,
        policy="" if asked is None else asked.of(primary.profile).policy,
        cost_per_hour=cost_of(decision.tag),
        cached_share=None if share is None else number(share),
    )


def simulated_record(
    simulation: Simulation, found: Simulated, *, at: float, config_generation: int = 0
) -> DecisionRecord:
    """Return the record of a simulated request; `at` is the current time in seconds since 1970."""
    record = record_of(
        found.request,
        found.outcome,
        simulation.pipeline.scheduler.profiles,
        id=f"simulated-{uuid4().hex[:16]}",
        kind="simulated",
        at=at,
        snapshot=found.snapshot,
        config_generation=config_generation,
        timings=Timings(scheduling=round(found.seconds, 6)),
    )
    why = record.why
    if found.waits:
        why = printable(f"waits for {found.waits}; then {why}", _MOST_TEXT)
    seen = record.seen
    if seen is not None:
        seen = replace(seen, eligible=found.eligible, screened=found.screened)
    return replace(record, why=why, seen=seen)


def error_of(error: RequestError) -> Mapping[str, Any]:
    """Return the error of a simulated request as plain data, with the response to the client."""
    shown = {
        "type": type(error).__name__.removesuffix("Error"),
        "message": error.message,
        "code": error.code,
        "status": error.status,
        "reason": error.reason or None,
        "detail": error.detail or None,
        "retryAfterSeconds": error.retry_after_seconds,
    }
    return {key: value for key, value in shown.items() if value is not None}


@dataclass(slots=True, eq=False)
class Recording:
    """Builds a record once, and then keeps it as bytes, because an open request refers to its recording."""

    id: str
    request_id: str
    received_at: float
    at: float
    """Seconds since 1970."""
    recorded_for: str
    is_complete: bool
    """Whether everything except the results of shadow profiles is known."""
    build: Callable[[], DecisionRecord] | None
    """Returns the record at the time of the decision; released after the call with everything that it refers to."""
    shadows: tuple[ShadowRun, ...] = ()
    awaits_shadows: bool = False
    """Whether results of shadow profiles are expected."""
    is_lost: bool = False
    """Whether its record could not be built."""
    is_queued: bool = False
    """Whether it waits to be built or updated."""
    is_written: bool = False
    """Whether it is written to the file."""
    data: bytes = b""
    """The record as JSON; empty before it is built."""
    _ending: Ending | None = None
    _times: dict[str, float | None] = field(default_factory=dict)
    """Timings of the response."""
    _why: str = ""

    def complete(self, routing: Routing, cause: Cause, now: float) -> None:
        """Record the end of the response; `now` is the time of the clock."""
        first, ended = routing.first_byte_at, routing.ended_at
        self.is_complete = True
        self._ending = ending_of(routing, cause)
        self._times = {
            "first_byte": None if first is None else round(first - self.received_at, _DIGITS),
            "total": round((now if ended is None else ended) - self.received_at, _DIGITS),
        }
        if self._ending.is_fallback:
            self._why = routing.decision.why(routing.served)

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
    usage, targets = routing.usage, routing.result.targets
    return Ending(
        cause=cause.value,
        status=routing.status,
        served_endpoint=routing.served.name,
        served_address=routing.served.hostport,
        is_fallback=routing.served.id != targets[0].id,
        response_bytes=routing.response_bytes,
        prompt_tokens=None if usage is None else usage.prompt_tokens,
        cached_tokens=usage.cached_tokens if usage is not None and routing.reports_cached else None,
        completion_tokens=None if usage is None else usage.completion_tokens,
        predicted_cached_tokens=routing.request.get(CACHED_TOKENS_PREDICTED),
    )
