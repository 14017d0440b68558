# SPDX-License-Identifier: Apache-2.0
"""A circuit breaker for a service that requests wait for."""

from collections.abc import Callable
from math import inf

from epp.framework import Clock


class Breaker:
    """Stops calls to a service that failed several times in a row; after a rest, one call tries it again.

    Without a clock there is no such trial: it is closed by `succeeded`, as when the status of the service is good.
    `changed` is called when it opens and closes.
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
        """Whether the service is asked."""
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
        """Reason that the service is not asked; empty if it is, and once the next request may try it again."""
        rests = self._clock is None or self._on_trial or self._clock.now() < self._rests_until
        return self._problem if rests else ""

    def allows(self) -> bool:
        """Return whether the service may be asked now; its outcome must be told."""
        if self.is_closed:
            return True
        if self._on_trial or self._clock is None or self._clock.now() < self._rests_until:
            return False
        self._on_trial = True
        return True

    def succeeded(self) -> None:
        """Ask the service from now on."""
        was_closed = self.is_closed
        self.is_closed, self._problem, self._failures, self._on_trial = True, "", 0, False
        if not was_closed:
            self._changed()

    def failed(self, problem: str, count: int = 1) -> None:
        """Count a failure, and let the service rest after several."""
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
        """Let another call try the service."""
        self._on_trial = False
