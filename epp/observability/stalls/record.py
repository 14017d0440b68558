# SPDX-License-Identifier: Apache-2.0
"""Stalls as operators see them: metrics, a log line now and then, and the longest one of late."""

from collections import deque
from collections.abc import Mapping

import structlog
from prometheus_client.registry import CollectorRegistry

from epp.framework.clock import Clock
from epp.observability.families import Counters
from epp.observability.stalls.stall import NO_CPU, Stall

_MOST_PLACES = 100
_OTHER = "other"
_LINE_SECONDS = 10.0
"""Between two log lines."""
_LOGGED_SECONDS = 0.1
"""A shorter stall is counted, and is no line: many a machine has some now and then."""
_PART_SECONDS, _PARTS = 60.0, 10

_log = structlog.get_logger()


class StallRecord:
    """Counts stalls by what held up the loop; written by the event loop, read by any thread."""

    def __init__(self, clock: Clock, registry: CollectorRegistry) -> None:
        self._clock = clock
        self._count = Counters(
            "llm_d_epp_event_loop_stalls_total",
            "Times that the event loop was held up for --stall-threshold or longer, by what did it: `module:function` "
            "of the picker or a plugin, `garbage collection`, `waiting for a CPU`, or `unknown`.",
            ("where",),
            registry,
        )
        self._seconds = Counters(
            "llm_d_epp_event_loop_stall_seconds_total", "Their seconds, by the same.", ("where",), registry
        )
        self._parts: deque[tuple[float, Stall]] = deque(maxlen=_PARTS)
        """The longest stall of each of the last minutes that had one, and when that was."""
        self._next_line_at = float("-inf")
        self._unsaid = 0

    def add(self, stall: Stall) -> None:
        """Count a stall; log a long one, unless another was logged just now."""
        where = stall.where
        places = self._count.values()
        if (where,) not in places and len(places) >= _MOST_PLACES:
            where = _OTHER
        self._count.labels(where).inc()
        self._seconds.labels(where).inc(stall.seconds)
        now = self._clock.now()
        self._keep_longest(now, stall)
        if stall.seconds < _LOGGED_SECONDS:
            return
        if now < self._next_line_at:
            self._unsaid += 1
            return
        more = {"more_since_last_line": self._unsaid} if self._unsaid else {}
        calls = {"calls": list(stall.stack)} if stall.stack else {}
        log = _log.info if stall.where == NO_CPU else _log.warning  # which is the machine's fault
        log("event loop stalled", where=stall.where, seconds=round(stall.seconds, 4), **more, **calls)
        self._next_line_at, self._unsaid = now + _LINE_SECONDS, 0

    @property
    def as_fields(self) -> Mapping[str, object]:
        """The longest stall of the last ten minutes, as a part of `/healthz`; nothing where there was none."""
        now = self._clock.now()
        recent = [(at, stall) for at, stall in self._parts.copy() if now - at < _PART_SECONDS * _PARTS]
        if not recent:
            return {}
        at, stall = max(recent, key=lambda each: each[1].seconds)
        shown = {"where": stall.where, "seconds": round(stall.seconds, 4), "seconds_ago": round(now - at)}
        return {"longest_stall": shown}

    def _keep_longest(self, now: float, stall: Stall) -> None:
        if self._parts and now // _PART_SECONDS == self._parts[-1][0] // _PART_SECONDS:
            if stall.seconds > self._parts[-1][1].seconds:
                self._parts[-1] = (now, stall)
            return
        self._parts.append((now, stall))
