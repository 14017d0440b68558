# SPDX-License-Identifier: Apache-2.0
"""Objects of one resource, kept up to date by a list and a watch that is resumed while the server allows it."""

import asyncio
import random
from collections.abc import Callable, Mapping
from enum import StrEnum

import structlog

from epp.framework.clock import Clock
from epp.kube.access import ABSENT, EXPIRED, REFUSED, UNAUTHORIZED, ApiError, ApiUnreachableError, KubeApi
from epp.kube.collection import ApiCollection, Decode, ObjectSet, T
from epp.kube.resources import Resource

_FIRST_DELAY_SECONDS = 0.2
_LONGEST_DELAY_SECONDS = 10.0
_LONGEST_DELAY_OF_MISSING_SECONDS = 60.0
"""Maximum for an absent or forbidden kind."""
_ABSENT_SECONDS = 30.0
"""Time after which a missing kind counts as removed: a starting server, or its proxy, may respond 404 as well."""
_SETTLING_SECONDS = 30.0
"""Longest wait for the first list while the server responds with errors."""
_STABLE_SECONDS = 5.0
"""Duration after which a watch resets the delay of retries."""
_WATCH_SECONDS = (240, 480)
"""Range of the random duration of a watch, so that the watches of replicas end at different times."""
_NARROWED_WATCH_SECONDS = (45, 90)
"""Range while access to all namespaces is forbidden; they are tried again after each watch."""
_OVERLOADED = frozenset({429, 503})

_log = structlog.get_logger()


class WatchState(StrEnum):
    STARTING = "not listed yet"
    CURRENT = "up to date"
    STALE = "the API server cannot be reached"
    ABSENT = "not installed"
    FORBIDDEN = "forbidden"


class Watched(ObjectSet[T]):
    """The objects of one resource, in one namespace or in all of them, with an optional selector.

    Objects stay in effect while the server is unreachable or forbids access. They are removed 30 seconds after their
    kind was uninstalled. Without an `observer`, each loss of access is logged here.
    """

    def __init__(
        self,
        api: KubeApi,
        resource: Resource,
        decode: Decode[T],
        *,
        clock: Clock,
        namespace: str = "",
        fallback: str = "",
        selector: Mapping[str, str] | None = None,
        observer: Callable[[], None] | None = None,
        place: str = "cluster",
        generator: random.Random | None = None,
    ) -> None:
        """`selector` has a `labelSelector` or a `fieldSelector`; an empty namespace means all of them.

        `fallback` is the namespace to read if access to all is forbidden. `observer` is called when the state changes.
        `place` is the source of the objects, for messages.
        """
        super().__init__(resource, decode, place)
        self.collection = ApiCollection(resource, namespace, fallback)
        self.state = WatchState.STARTING
        self.reason = ""
        """Reason why the objects are not up to date; empty if they are."""
        self.lists = 0
        self._api = api
        self._clock = clock
        self._selector = dict(selector or {})
        self._generator = generator or random.Random()  # noqa: S311  only spreads requests
        self._observer = observer
        self._settled = asyncio.Event()
        self._listed = asyncio.Event()
        self._was_wide = False
        """Whether all namespaces were readable once; if so, the objects stay in effect if access is forbidden later."""
        self._narrow_version = ""
        """resourceVersion at which the fallback continues after another try of all namespaces."""
        self._lost_at: float | None = None
        self._connected_at: float | None = None
        self._missing_at: float | None = None
        self._failing_at: float | None = None
        self._delay = _FIRST_DELAY_SECONDS

    @property
    def stale_seconds(self) -> float:
        """Seconds since the objects were last readable; 0 while they are up to date."""
        return 0.0 if self._lost_at is None else max(0.0, self._clock.now() - self._lost_at)

    async def settled(self) -> None:
        """Wait until the objects are listed, the kind is absent or forbidden, or errors persist for 30 seconds."""
        await self._settled.wait()

    async def first_list(self) -> None:
        await self._listed.wait()

    async def run(self) -> None:
        while True:
            try:
                if not self.version:
                    await self._list()
                await self._watch()
                wait = 0.0 if self._was_stable() else self._next_delay(_LONGEST_DELAY_SECONDS)
            except ApiUnreachableError as error:
                self._missing_at = self._failing_at = None
                self._interrupted(WatchState.STALE, str(error))
                wait = self._next_delay(_LONGEST_DELAY_SECONDS)
            except ApiError as error:
                wait = self._refused(error)
            await asyncio.sleep(wait * self._generator.uniform(0.5, 1.0))

    async def _list(self) -> None:
        await self.collection.find(self._api)
        self.replace(*await self.collection.list_all(self._api, self, self._selector))
        self.lists += 1
        self._was_wide |= not self.collection.is_narrowed
        self.collection.found()
        self._listed.set()
        self._current()

    async def _watch(self) -> None:
        seconds = _NARROWED_WATCH_SECONDS if self.collection.is_narrowed else _WATCH_SECONDS
        params = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self.version,
            "timeoutSeconds": str(self._generator.randint(*seconds)),
            **self._selector,
        }
        async with self._api.stream(self.collection.path, params) as reads:
            self._current()
            async for lines in reads:
                self.apply(lines)
        if self.collection.is_narrowed:
            self._narrow_version, self.version = self.version, ""
            self.collection.widen()

    def _current(self) -> None:
        if self.state not in {WatchState.STARTING, WatchState.CURRENT} and self._observer is None:
            _log.info("objects readable again", resource=self.collection.title, objects=len(self.objects))
        self._lost_at = None
        self._connected_at = self._clock.now()
        self._missing_at = self._failing_at = None
        self._settled.set()
        self._change(WatchState.CURRENT, "")

    def _interrupted(self, state: WatchState, reason: str) -> None:
        if state is WatchState.ABSENT:
            self._lost_at = None
        elif self._lost_at is None:
            self._lost_at = self._clock.now()
        if self.state is not state and self._observer is None:
            log = _log.info if state is WatchState.ABSENT else _log.warning
            log("objects not readable", resource=self.collection.title, state=str(state), reason=reason)
        self._change(state, reason)

    def _change(self, state: WatchState, reason: str) -> None:
        before = self.state
        self.state, self.reason = state, reason
        if state is not before and self._observer is not None:
            self._observer()

    def _refused(self, error: ApiError) -> float:
        if error.status == EXPIRED:
            self.version = ""
            return self._next_delay(_LONGEST_DELAY_SECONDS)
        if error.status in ABSENT:
            self.version = ""
            if self.collection.next_version():
                return 0.0
            self._narrow_version = ""
            return self._missing(error)
        self._missing_at = None
        if error.status in REFUSED:
            unauthorized = error.status == UNAUTHORIZED
            if not unauthorized and not self._was_wide and self.collection.narrow():
                self.version, self._narrow_version = self._narrow_version, ""
                return 0.0
            rejected = "the API server rejects the credentials: " if unauthorized else ""
            self._interrupted(WatchState.FORBIDDEN, f"{rejected}{error}")
            self._settled.set()
            return self._next_delay(_LONGEST_DELAY_SECONDS if unauthorized else _LONGEST_DELAY_OF_MISSING_SECONDS)
        if error.status not in _OVERLOADED:
            self.version = ""  # the server may reject this version
        self._failing_at, failing = self._since(self._failing_at)
        if failing >= _SETTLING_SECONDS:
            self._settled.set()
        self._interrupted(WatchState.STALE, str(error))
        return max(self._next_delay(_LONGEST_DELAY_SECONDS), min(error.retry_after, _LONGEST_DELAY_SECONDS))

    def _missing(self, error: ApiError) -> float:
        """Handle an absent kind, and remove its objects after 30 seconds; return the delay before the next attempt."""
        self._missing_at, missing = self._since(self._missing_at)
        if self.objects and missing < _ABSENT_SECONDS:
            self._interrupted(WatchState.STALE, str(error))
            return self._next_delay(_LONGEST_DELAY_SECONDS)
        if self.state is not WatchState.ABSENT:
            self.clear()
        self._interrupted(WatchState.ABSENT, str(error))
        self._settled.set()
        return self._next_delay(_LONGEST_DELAY_OF_MISSING_SECONDS)

    def _since(self, moment: float | None) -> tuple[float, float]:
        now = self._clock.now()
        began = now if moment is None else moment
        return began, now - began

    def _next_delay(self, longest: float) -> float:
        if self._was_stable():
            self._delay = _FIRST_DELAY_SECONDS
        self._connected_at = None
        delay = min(self._delay, longest)
        self._delay = min(2 * delay, longest)
        return delay

    def _was_stable(self) -> bool:
        return self._connected_at is not None and self._clock.now() - self._connected_at >= _STABLE_SECONDS
