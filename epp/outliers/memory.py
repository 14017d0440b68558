# SPDX-License-Identifier: Apache-2.0
"""Endpoints that fail are avoided at once, asked, and ejected if they go on failing; no I/O."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from epp.datastore import Change, Datastore
from epp.framework.clock import Clock
from epp.framework.endpoint import Endpoint
from epp.outliers.failures import Failure
from epp.outliers.record import Record, State
from epp.outliers.settings import OutlierSettings
from epp.outliers.verdict import Ask, Told, Verdict

_LONGEST_SUSPICION_SECONDS = 3.0
"""By then the polls themselves have found a silent endpoint to be one."""

_WORDS = {
    Failure.CONNECTION: "failed connections",
    Failure.GATEWAY: "responses with 502, 503 or 504",
    Failure.SERVER: "responses with an error of the server",
}

_log = structlog.get_logger()


class OutlierObserver:
    """No-op callbacks; override those of interest."""

    __slots__ = ()

    def endpoint_suspected(self, verdict: Verdict) -> None:
        """Record what the port of an endpoint said after a failed connection."""

    def endpoint_ejected(self, cause: Failure) -> None:
        """Record an ejection."""

    def ejection_spared(self, cause: Failure) -> None:
        """Record that an endpoint was not ejected, as too many are already."""

    def endpoints_ejected(self, count: int) -> None:
        """Record how many are ejected now."""


@dataclass(frozen=True, slots=True)
class Ejected:
    """An endpoint that is ejected, and why."""

    endpoint: Endpoint
    cause: Failure
    failures: int
    """In a row."""
    until: float
    """Seconds on the clock; past for one that is on trial."""

    def why(self, now: float) -> str:
        """Return the reason in words."""
        left = self.until - now
        then = f"again in {left:.0f} s" if left >= 1 else "on trial: the next request decides"
        return f"ejected: {self.failures} {_WORDS[self.cause]} in a row, {then}"


class OutlierMemory:
    """Writes to the datastore which endpoints requests avoid.

    A failed connection makes an endpoint suspect: it is avoided, and its port asked at once. If it refuses, the polls
    keep it out until it answers; if it answers, it is back, and after several such failures in a row it is ejected.
    The time of ejections grows with their number. When it is over, one request goes there, and its response decides.

    Where all endpoints would be avoided, none is: see `Snapshot.available`.
    """

    def __init__(
        self,
        store: Datastore,
        clock: Clock,
        settings: OutlierSettings | None = None,
        *,
        observer: OutlierObserver | None = None,
    ) -> None:
        self.settings = settings or OutlierSettings()
        self._store = store
        self._clock = clock
        self._observer = observer or OutlierObserver()
        self._records: dict[int, Record] = {}
        """By slot; of endpoints that nothing is held against, there is none."""
        self.on_trial: set[int] = set()
        """Slots whose next request decides; usually none."""
        self._successes = 0
        """Responses that are no failures, since something was held against an endpoint."""
        self._ask: Ask | None = None
        self._listeners: list[Callable[[], None]] = []
        self.ejected: Sequence[Ejected] = ()
        """The endpoints that are ejected; may be read in any thread."""
        store.subscribe(self._pool_changed)

    def ask_with(self, ask: Ask) -> None:
        """Let endpoints be asked."""
        self._ask = ask

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener` when the ejected endpoints change, and when there is something to sweep."""
        self._listeners.append(listener)

    @property
    def is_clean(self) -> bool:
        """Whether nothing is held against any endpoint."""
        return not self._records

    @property
    def now(self) -> float:
        """The time on the clock."""
        return self._clock.now()

    def inquire(self, endpoint: Endpoint, tell: Told) -> bool:
        """Ask the port of an endpoint, and tell the verdict, once; return False where it cannot be asked."""
        if self._ask is None:
            return False
        self._ask(endpoint, tell)
        return True

    def picked(self, slot: int) -> None:
        """Note that a request goes to a slot: one on trial gets no other one before the response."""
        if slot in self.on_trial:
            record = self._records[slot]
            record.last(self._clock.now(), self.settings.base_ejection_seconds)
            self._put(slot, record, State.TRIED)

    def succeeded(self, endpoint: Endpoint) -> None:
        """Note a response that is no failure."""
        if not self._records:
            return
        self._successes += 1
        slot = self._store.slot_of(endpoint)
        record = None if slot is None else self._records.get(slot)
        if slot is None or record is None:
            return
        record.acquit()
        if record.state in (State.ON_TRIAL, State.TRIED):
            _log.info("endpoint is used again", endpoint=endpoint.id)
            record.failed_at = self._clock.now()  # its ejections are forgotten from now on
            self._put(slot, record, State.IN)
        self._drop_clean(slot, record)

    def failed(self, endpoint: Endpoint, failure: Failure, asked: int = 0) -> None:
        """Note a request that failed there.

        `asked` is a hash of what was asked, 0 for none: a request that is sent again and again counts once, as it may
        be the reason.
        """
        slot = self._store.slot_of(endpoint)
        if slot is None or not self.settings.enabled:
            return
        now = self._clock.now()
        record = self._records.get(slot) or self._begin(slot, endpoint)
        record.age(now, self.settings)
        record.failed_at = now
        if record.state is State.EJECTED:
            return  # a request that was under way
        if record.state in (State.ON_TRIAL, State.TRIED):
            self._eject(slot, record, failure, 1)
            return
        is_another, record.asked = not asked or asked != record.asked, asked
        if failure is Failure.CONNECTION:
            self._suspect(slot, record, counts=is_another)
            return
        if not is_another:
            return
        if not record.errors:
            record.successes_before = self._successes
        record.errors += 1
        if failure is Failure.GATEWAY:
            record.connections += 1
        self._judge(slot, record, failure)

    def suspect(self, endpoint: Endpoint) -> None:
        """Avoid an endpoint until its port has answered, since there are signs that it has died."""
        slot = self._store.slot_of(endpoint)
        if slot is None or not self.settings.enabled or self._ask is None:
            return
        record = self._records.get(slot) or self._begin(slot, endpoint)
        if record.state is State.IN:
            self._suspect(slot, record, counts=False)

    def passed_over(self, endpoints: Sequence[Endpoint]) -> None:
        """Note that the gateway went on to the next in its list: it had no connection to these."""
        for endpoint in endpoints:
            self.failed(endpoint, Failure.CONNECTION)

    def sweep(self) -> None:
        """End what has had its time, and forget what is long ago."""
        now = self._clock.now()
        for slot, record in list(self._records.items()):
            record.age(now, self.settings)
            if record.until <= now:
                if record.state is State.SUSPECTED:
                    self._put(slot, record, State.IN)
                elif record.state in (State.EJECTED, State.TRIED):
                    self._put(slot, record, State.ON_TRIAL)
            self._drop_clean(slot, record)

    def _begin(self, slot: int, endpoint: Endpoint) -> Record:
        record = self._records[slot] = Record(endpoint, self._clock.now())
        self._tell()
        return record

    def _suspect(self, slot: int, record: Record, *, counts: bool) -> None:
        """Avoid an endpoint until its port has been asked; without means to ask, count the failure at once."""
        record.has_failed = counts or (record.has_failed and record.state is State.SUSPECTED)
        if record.state is State.SUSPECTED:
            return  # many requests may fail at one moment
        endpoint = record.endpoint
        record.last(self._clock.now(), _LONGEST_SUSPICION_SECONDS)
        self._put(slot, record, State.SUSPECTED)
        if not self.inquire(endpoint, lambda verdict: self._told(endpoint, verdict)):
            self._told(endpoint, Verdict.ANSWERS)

    def _told(self, endpoint: Endpoint, verdict: Verdict) -> None:
        self._observer.endpoint_suspected(verdict)
        slot = self._store.slot_of(endpoint)
        record = None if slot is None else self._records.get(slot)
        if slot is None or record is None or record.state is not State.SUSPECTED:
            return
        if verdict is Verdict.REFUSES:  # the polls keep it out, and bring it back as it answers
            record.acquit()
            self._put(slot, record, State.IN)
            self._drop_clean(slot, record)
            return
        if verdict is Verdict.ANSWERS:
            self._put(slot, record, State.IN)
        if record.has_failed:
            record.connections += 1
            self._judge(slot, record, Failure.CONNECTION)
        self._drop_clean(slot, record)

    def _judge(self, slot: int, record: Record, failure: Failure) -> None:
        settings = self.settings
        if 0 < settings.consecutive_gateway_failure <= record.connections:
            self._eject(slot, record, failure, record.connections)
            return
        # Where others have answered as often meanwhile, the requests are not to blame.
        others = self._successes - record.successes_before
        if 0 < settings.consecutive_5xx <= record.errors <= others:
            self._eject(slot, record, Failure.SERVER, record.errors)

    def _eject(self, slot: int, record: Record, cause: Failure, count: int) -> None:
        out = sum(other.state.is_ejected for other in self._records.values() if other is not record)
        if out >= self.settings.most_ejected(self._store.count):
            self._observer.ejection_spared(cause)
            if record.state.is_ejected:
                self._put(slot, record, State.IN)
            return
        record.ejections += 1
        record.cause, record.count = cause, count
        record.acquit()
        seconds = self.settings.seconds_of(record.ejections)
        record.last(self._clock.now(), seconds)
        self._observer.endpoint_ejected(cause)
        _log.warning(
            "endpoint ejected",
            endpoint=record.endpoint.id,
            failures=count,
            kind=_WORDS[cause],
            seconds=seconds,
            remedy="look at the server's log",
        )
        self._put(slot, record, State.EJECTED)

    def _put(self, slot: int, record: Record, state: State) -> None:
        was_ejected, record.state = record.state.is_ejected, state
        if state is State.ON_TRIAL:
            self.on_trial.add(slot)
        else:
            self.on_trial.discard(slot)
        self._store.avoid(slot, avoided=state.is_avoided)
        if was_ejected or state.is_ejected:
            self._changed()

    def _drop_clean(self, slot: int, record: Record) -> None:
        if record.is_clean:
            del self._records[slot]

    def _pool_changed(self, change: Change) -> None:
        removed = {slot for slot, _ in change.removed}
        for slot in removed & self._records.keys():
            del self._records[slot]
        self.on_trial -= removed
        if change.removed or change.added:
            self._keep_within_limit()
            self._changed()

    def _keep_within_limit(self) -> None:
        """Let endpoints return, the ones first that would anyway, where the pool has become too small for them."""
        out = [(record.until, slot) for slot, record in self._records.items() if record.state.is_ejected]
        for _, slot in sorted(out)[: max(len(out) - self.settings.most_ejected(self._store.count), 0)]:
            self._put(slot, self._records[slot], State.IN)

    def _changed(self) -> None:
        self.ejected = tuple(
            Ejected(record.endpoint, record.cause, record.count, record.until)
            for record in self._records.values()
            if record.state.is_ejected
        )
        self._observer.endpoints_ejected(len(self.ejected))
        self._tell()

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()
