# SPDX-License-Identifier: Apache-2.0
"""A circuit breaker for a service that requests wait for."""

from collections.abc import Callable
from math import inf

import structlog

from epp.framework import Clock

_log = structlog.get_logger()


class Breaker:
    """Stops calls to a service that failed several times in a row; after a pause, one trial call is allowed.

    Without a clock there is no trial call: only `succeeded` closes the breaker. `changed` is called when it opens and
    when it closes.
    """

    def __init__(
        self,
        most_failures: int,
        changed: Callable[[], None],
        *,
        clock: Clock | None = None,
        rest_seconds: float = 0.0,
        is_closed: bool = True,
    ) -> None:
        self.is_closed = is_closed
        """Whether calls are allowed."""
        self._problem = ""
        self._most_failures = most_failures
        self._changed = changed
        self._clock = clock
        self._rest_seconds = rest_seconds
        self._failures = 0
        self._rests_until = inf
        self._on_trial = False

    @property
    def problem(self) -> str:
        """Reason that calls are stopped; empty if calls, or a trial call, are allowed."""
        rests = self._clock is None or self._on_trial or self._clock.now() < self._rests_until
        return self._problem if rests else ""

    def allows(self) -> bool:
        """Return whether the service may be called now; the caller must report the outcome."""
        if self.is_closed:
            return True
        if self._on_trial or self._clock is None or self._clock.now() < self._rests_until:
            return False
        self._on_trial = True
        return True

    def succeeded(self) -> None:
        """Record a successful call, and allow calls."""
        was_closed = self.is_closed
        self.is_closed, self._problem, self._failures, self._on_trial = True, "", 0, False
        if not was_closed:
            self._changed()

    def failed(self, problem: str, count: int = 1) -> None:
        """Count failures, and stop calls after several."""
        self._failures += count
        self._on_trial = False
        if self._failures < self._most_failures:
            return
        was_working = not self._problem
        self.is_closed, self._problem = False, problem
        if self._clock is not None:
            self._rests_until = self._clock.now() + self._rest_seconds
        if was_working:
            self._changed()

    def cancelled(self) -> None:
        """Record a call without an outcome; another trial call is allowed."""
        self._on_trial = False

    def log_change(self, service: str, effect: str, source: str) -> None:
        """Log that calls to a service are stopped, with the effect on requests, or allowed again."""
        if self.is_closed:
            _log.info(f"{service} answers again", source=source)
        else:
            text, problem = f"{service} fails: {effect}", self.problem
            _log.warning(text, source=source, problem=problem, next_try_seconds=self._rest_seconds)
