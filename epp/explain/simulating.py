# SPDX-License-Identifier: Apache-2.0
"""The record of a request that was simulated, and what else there is to say of it."""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from msgspec.structs import replace

from epp.explain.building import record_of
from epp.explain.record import DecisionRecord, Timings
from epp.framework.errors import RequestError
from epp.framework.messages import printable
from epp.routing.director import Simulated, Simulation

_MOST_WHY = 300


def simulated_record(
    simulation: Simulation, found: Simulated, *, at: float, config_generation: int = 0
) -> DecisionRecord:
    """Return the record; `at` is the time of now in seconds since 1970."""
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
        why = printable(f"waits for {found.waits}; then {why}", _MOST_WHY)
    seen = record.seen
    if seen is not None:
        seen = replace(seen, eligible=found.eligible, screened=found.screened)
    return replace(record, why=why, seen=seen)


def error_of(error: RequestError) -> Mapping[str, Any]:
    """Return the error of a request that is not routed: what programs go by, and what the client would be told."""
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
