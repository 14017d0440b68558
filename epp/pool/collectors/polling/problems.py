# SPDX-License-Identifier: Apache-2.0
"""Problems with the pages of an endpoint: each is logged when it comes, until it is resolved, but not too often."""

import logging
from collections import deque

import structlog

from epp.framework.clock import Clock
from epp.framework.datalayer import Feed, NotAskedError, PageError, UnreachableError
from epp.framework.endpoint import Endpoint
from epp.framework.messages import described
from epp.pool.collectors.limits import PageLimitError

PAGE = "page"
IN_PART = "in part"
_MOST_LOGGED, _LOGGED_SECONDS = 6, 60.0
"""Problems that are logged in that time, as a server may answer well every other time."""

_log = structlog.get_logger()


class Problems:
    """Of one feed of one endpoint, by kind: `PAGE`, `IN_PART`, or the name of an extractor."""

    __slots__ = ("_clock", "_feed", "_logged", "_logged_at", "_present")

    def __init__(self, feed: Feed, clock: Clock) -> None:
        self._feed = feed
        self._clock = clock
        self._present: dict[str, str] = {}
        """The sort of the last problem of each kind."""
        self._logged: set[str] = set()
        """Kinds whose current problem was logged."""
        self._logged_at: deque[float] = deque(maxlen=_MOST_LOGGED)

    def __bool__(self) -> bool:
        """Whether there is one."""
        return bool(self._present)

    def came(self, kind: str, endpoint: Endpoint, error: Exception) -> None:
        """Log a problem, unless it is there already, or there were many in a short while."""
        sort = error.contact if isinstance(error, UnreachableError) else type(error).__name__
        if self._present.get(kind) == sort:
            return
        self._present[kind] = sort
        now = self._clock.now()
        if len(self._logged_at) == _MOST_LOGGED and now < self._logged_at[0] + _LOGGED_SECONDS:
            return
        self._logged_at.append(now)
        self._logged.add(kind)
        expected = isinstance(error, NotAskedError | PageError | UnreachableError)
        shown_elsewhere = self._feed.asks(endpoint) and isinstance(error, PageError | UnreachableError)
        in_part = isinstance(error, PageLimitError) and error.in_part
        _log.log(
            logging.DEBUG if shown_elsewhere else logging.WARNING,
            "endpoint read in part" if in_part else "endpoint not read",
            endpoint=endpoint.id,
            source=self._feed.source.name,
            extractor=None if kind in {PAGE, IN_PART} else kind,
            reason=str(error) if expected else described(error),
            remedy=getattr(error, "remedy", "") or None,
            exc_info=None if expected else error,
        )

    def went(self, kind: str, endpoint: Endpoint) -> None:
        """Log that a problem is resolved, if it was logged."""
        if self._present.pop(kind, None) is not None and kind in self._logged:
            self._logged.discard(kind)
            _log.info("endpoint read again", endpoint=endpoint.id, source=self._feed.source.name)
