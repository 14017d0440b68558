# SPDX-License-Identifier: Apache-2.0
"""Detection of failing endpoints: they are avoided, probed, ejected, and reported to other pickers. Does no I/O."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt

import msgspec
import structlog

from epp.framework.clock import Clock
from epp.framework.endpoint import Endpoint
from epp.framework.sharing import MOST_PAYLOAD_BYTES, Shareable
from epp.framework.snapshot import Snapshot
from epp.routing.datastore import Change, Datastore
from epp.routing.outliers.record import Failure, OnVerdict, ProbeRequest, Record, RequestCounts, State, Verdict
from epp.routing.settings import OutlierSettings

_LONGEST_SUSPICION_SECONDS = 3.0
"""Time after which polls have detected a silent endpoint."""

_MOST_MODELS = 1000
"""Largest number of models whose last successful endpoint is kept."""
_BUSY_SECONDS = 3.0
"""An endpoint that answers 429 this soon after a success is busy, not broken."""
_FAILING_SECONDS = 30.0
"""Time for which an endpoint counts as failing after a failure, unless it succeeds."""
_STANDARD_DEVIATIONS = 3.0
_LEAST_SHARE_OF_OTHERS = 0.8
"""An endpoint fails too often if its success rate is below this share of the others' rate, and also this number of
standard deviations below that rate."""

_WORDS = {
    Failure.CONNECTION: "failed connections",
    Failure.GATEWAY: "responses with 502, 503 or 504",
    Failure.SERVER: "responses with an error of the server",
    Failure.OVERLOAD: "responses with 429",
    Failure.MODEL: "responses with 404 to requests for models that others serve",
}

_log = structlog.get_logger()


class OutlierObserver:
    """No-op callbacks; override those of interest."""

    __slots__ = ()

    def endpoint_suspected(self, verdict: Verdict) -> None:
        """Record the result of a probe of an endpoint's port after a failed connection."""

    def endpoint_ejected(self, cause: Failure) -> None:
        """Record an ejection."""

    def ejection_spared(self, cause: Failure) -> None:
        """Record that an endpoint was not ejected because of the limit."""

    def endpoints_ejected(self, count: int) -> None:
        """Record the number of endpoints that are ejected now."""


@dataclass(frozen=True, slots=True)
class Ejected:
    endpoint: Endpoint
    reason: str
    until: float
    """Seconds on the clock; in the past for an endpoint on trial."""

    def why(self, now: float) -> str:
        left = self.until - now
        then = f"again in {left:.0f} s" if left >= 1 else "on trial: the next request decides"
        return f"ejected: {self.reason}, {then}"


class OutlierDetector:
    """Marks the endpoints in the datastore that requests avoid.

    After a failed connection, an endpoint is suspected: it is avoided, and its port is probed immediately. If the port
    refuses, polls exclude the endpoint until it answers; if it answers, the endpoint is used again. Several such
    failures in a row eject it.

    An endpoint is ejected after `consecutive_5xx` failures of any kind in a row, if other endpoints succeed in the
    meantime or none of them fails; and if its success rate is far below that of the others. Each ejection takes longer
    than the one before. After it, one request is sent to the endpoint, and its response decides.

    The pool is never ejected as a whole: if all endpoints would be avoided, all are used; see `Snapshot.available`.
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
        """Records by slot; endpoints without failures have none."""
        self.on_trial: set[int] = set()
        """Slots whose next request decides; usually none."""
        self._successes = 0
        """Successes in the whole pool since the first recorded failure."""
        self._unproven: int | None = None
        """Slot that was ejected before any other endpoint answered a request."""
        self._requests = RequestCounts(clock.now())
        self._succeeded_at: dict[int, float] = {}
        """Time of the last success, by slot."""
        self._answered: dict[str, int] = {}
        """Slot of the last success, by model."""
        self.ask: ProbeRequest | None = None
        """Probes endpoints; None if probes are impossible."""
        self._listeners: list[Callable[[], None]] = []
        self.ejected: Sequence[Ejected] = ()
        """Ejected endpoints; may be read in any thread."""
        store.subscribe(self._pool_changed)

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener` when the ejected endpoints change, and when `sweep` becomes necessary."""
        self._listeners.append(listener)

    @property
    def is_clean(self) -> bool:
        return not self._records

    @property
    def failing(self) -> Mapping[str, str]:
        """Failures of endpoints that stay in use for lack of a replacement, by id; may be read in any thread."""
        most = self.settings.consecutive_5xx
        return {
            record.endpoint.id: f"{record.errors} {_WORDS[record.last_failure]} in a row; used, as no other endpoint "
            "takes its place"
            for record in tuple(self._records.values())
            if 0 < most <= record.errors and record.state is State.IN
        }

    @property
    def own_failures(self) -> Iterator[tuple[str, float | None]]:
        """Yield the addresses that failed requests of this picker, with the seconds left of an ejection; else None."""
        for record in self._records.values():
            if record.state is State.SUSPECTED and record.has_failed:
                yield record.endpoint.hostport, None
            elif record.state is State.EJECTED and not record.is_by_peer:
                yield record.endpoint.hostport, max(0.001, record.until - self._clock.now())

    @property
    def now(self) -> float:
        return self._clock.now()

    def probe(self, endpoint: Endpoint, on_verdict: OnVerdict) -> bool:
        """Probe the port of an endpoint, and report the verdict once; return False if probes are impossible."""
        if self.ask is None:
            return False
        self.ask(endpoint, on_verdict)
        return True

    def picked(self, slot: int) -> None:
        """Record a request to a slot; a slot on trial gets one request at a time."""
        if slot in self.on_trial:
            record = self._records[slot]
            record.set_end(self._clock.now(), self.settings.base_ejection_seconds)
            self._put(slot, record, State.TRIED)

    def succeeded(self, endpoint: Endpoint, model: str = "") -> None:
        """Record a response that is not a failure."""
        slot = self._store.slot_of(endpoint)
        if slot is None:
            return
        if self._answered.get(model) != slot:
            if len(self._answered) >= _MOST_MODELS:
                self._answered.clear()
            self._answered[model] = slot
        now = self._succeeded_at[slot] = self._clock.now()
        if not self._records:
            return
        self._successes += 1
        if slot != self._unproven:
            self._unproven = None
        self._requests.add(now, success=True)
        record = self._records.get(slot)
        if record is None:
            return
        record.requests.add(now, success=True)
        record.clear_failures()
        if record.state in (State.ON_TRIAL, State.TRIED):
            _log.info("endpoint is used again", endpoint=endpoint.id)
            record.failed_at = now  # its ejections are forgotten from now on
            self._put(slot, record, State.IN)
        self._drop_clean(slot, record)

    def failed(self, endpoint: Endpoint, failure: Failure, content_hash: int = 0, model: str = "") -> None:
        """Record a failed request for a model.

        `content_hash` is a hash of its content, 0 for none: a request that is repeated counts once, since it may be the
        cause.
        """
        slot = self._store.slot_of(endpoint)
        if slot is None or not self.settings.enabled:
            return
        now = self._clock.now()
        if self._is_excused(slot, failure, model, now):
            return
        record = self._records.get(slot) or self._begin(slot, endpoint)
        record.age(now, self.settings)
        record.failed_at = now
        record.last_failure = failure
        if record.state is State.EJECTED:
            return  # the request was in flight at the ejection
        if record.state in (State.ON_TRIAL, State.TRIED):
            self._eject(slot, record, failure, f"the request on trial failed ({failure.value})")
            return
        is_another = not content_hash or content_hash != record.content_hash
        record.content_hash = content_hash
        if failure is Failure.CONNECTION:
            self._suspect(slot, record, counts=is_another)
            return
        if not is_another:
            return
        if not record.errors:
            record.successes_before = self._successes
        self._release_unproven(slot)
        self._requests.add(now, success=False)
        record.requests.add(now, success=False)
        record.errors += 1
        if failure is Failure.GATEWAY:
            record.connections += 1
        self._judge(slot, record, failure)

    def _is_excused(self, slot: int, failure: Failure, model: str, now: float) -> bool:
        """Return whether the endpoint is not at fault: it is busy, or no other is known to have the model."""
        if failure is Failure.MODEL:
            return self._answered.get(model, slot) == slot
        return failure is Failure.OVERLOAD and now - self._succeeded_at.get(slot, -inf) < _BUSY_SECONDS

    def suspect(self, endpoint: Endpoint) -> None:
        """Avoid an endpoint until its port has answered, because it may have died."""
        slot = self._store.slot_of(endpoint)
        if slot is None or not self.settings.enabled or self.ask is None:
            return
        record = self._records.get(slot) or self._begin(slot, endpoint)
        if record.state is State.IN:
            self._suspect(slot, record, counts=False)

    def ejected_by_peer(self, endpoint: Endpoint, seconds: float) -> None:
        """Eject an endpoint for some seconds, as another picker did; 0 if that picker uses it again."""
        slot, settings = self._store.slot_of(endpoint), self.settings
        if slot is None or not settings.enabled:
            return
        record = self._records.get(slot)
        if not seconds > 0:
            if record is not None and record.is_by_peer and record.state is State.EJECTED:
                self._put(slot, record, State.ON_TRIAL)
            return
        out = sum(other.state.is_ejected for other in self._records.values())
        if (record is not None and record.state.is_ejected) or out >= settings.most_ejected(self._store.count):
            return
        record = record or self._begin(slot, endpoint)
        record.is_by_peer, record.reason = True, "another picker ejected it"
        record.set_end(self._clock.now(), min(seconds, settings.max_ejection_seconds))
        _log.warning("endpoint ejected", endpoint=endpoint.id, reason=record.reason, seconds=round(record.seconds, 1))
        self._put(slot, record, State.EJECTED)

    def sweep(self) -> None:
        """End expired suspicions and ejections, and forget old failures."""
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
        self._notify()
        return record

    def _suspect(self, slot: int, record: Record, *, counts: bool) -> None:
        """Avoid an endpoint until its port was probed; if probes are impossible, count the failure immediately."""
        record.has_failed = counts or (record.has_failed and record.state is State.SUSPECTED)
        if record.state is State.SUSPECTED:
            return  # many requests may fail at the same time
        endpoint = record.endpoint
        record.set_end(self._clock.now(), _LONGEST_SUSPICION_SECONDS)
        self._put(slot, record, State.SUSPECTED)
        if not self.probe(endpoint, lambda verdict: self._probed(endpoint, verdict)):
            self._probed(endpoint, Verdict.ANSWERS)

    def _probed(self, endpoint: Endpoint, verdict: Verdict) -> None:
        self._observer.endpoint_suspected(verdict)
        slot = self._store.slot_of(endpoint)
        record = None if slot is None else self._records.get(slot)
        if slot is None or record is None or record.state is not State.SUSPECTED:
            return
        if verdict is Verdict.REFUSES:  # polls exclude it until it answers
            record.clear_failures()
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
            self._eject(slot, record, failure, f"{record.connections} {_WORDS[failure]} in a row")
        elif 0 < settings.consecutive_5xx <= record.errors and self._others_do_better(slot, record):
            is_proven = self._successes > record.successes_before
            self._eject(slot, record, failure, f"{record.errors} {_WORDS[failure]} in a row")
            if not is_proven and record.state is State.EJECTED:
                self._unproven = slot
        elif self._succeeds_too_rarely(record):
            failed, succeeded = record.requests.failures, record.requests.successes
            reason = f"{failed} of {failed + succeeded} requests failed, a far larger share than at the others"
            self._eject(slot, record, failure, reason)
        elif record.errors == settings.consecutive_5xx:
            _log.warning(
                "endpoint fails but stays in use, as no other endpoint takes its place",
                endpoint=record.endpoint.id,
                failures=f"{record.errors} {_WORDS[failure]} in a row",
            )
            self._notify()

    def _release_unproven(self, failed: int) -> None:
        """Readmit the endpoint that was ejected before another one answered, since another one fails too."""
        slot, self._unproven = self._unproven, None
        record = None if slot is None or slot == failed else self._records.get(slot)
        if slot is not None and record is not None and record.state is State.EJECTED:
            self._put(slot, record, State.IN)

    def _others_do_better(self, slot: int, record: Record) -> bool:
        """Return whether other endpoints have succeeded in the meantime, or none of them fails."""
        if self._successes > record.successes_before:
            return True
        earliest = self._clock.now() - _FAILING_SECONDS
        return not any(
            other.failed_at > max(earliest, self._succeeded_at.get(each, -inf))
            for each, other in self._records.items()
            if each != slot
        )

    def _succeeds_too_rarely(self, record: Record) -> bool:
        """Compare the success rate with that of the others by counts, since rates of few endpoints have no spread."""
        least, own, pool = self.settings.success_rate_request_volume, record.requests, self._requests
        count = own.failures + own.successes
        others = pool.failures + pool.successes - count
        if not 0 < least <= min(count, others):
            return False
        rate = (pool.successes - own.successes + 1) / (others + 2)  # never 1: Laplace's rule of succession
        deviation = sqrt(rate * (1 - rate) / count)
        return own.successes / count < min(rate - _STANDARD_DEVIATIONS * deviation, rate * _LEAST_SHARE_OF_OTHERS)

    def _eject(self, slot: int, record: Record, cause: Failure, reason: str) -> None:
        out = sum(other.state.is_ejected for other in self._records.values() if other is not record)
        if out >= self.settings.most_ejected(self._store.count):
            self._observer.ejection_spared(cause)
            if record.state.is_ejected:
                self._put(slot, record, State.IN)
            return
        record.ejections += 1
        record.reason, record.is_by_peer = reason, False
        record.clear_failures()
        record.requests = RequestCounts(self._clock.now())
        seconds = self.settings.seconds_of(record.ejections)
        record.set_end(self._clock.now(), seconds)
        self._observer.endpoint_ejected(cause)
        remedy = "look at the server's log"
        _log.warning("endpoint ejected", endpoint=record.endpoint.id, reason=reason, seconds=seconds, remedy=remedy)
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
        for slot in removed:
            self._records.pop(slot, None)
            self._succeeded_at.pop(slot, None)
        self.on_trial -= removed
        if self._unproven in removed:
            self._unproven = None
        if change.removed or change.added:
            self._keep_within_limit()
            self._changed()

    def _keep_within_limit(self) -> None:
        """Readmit endpoints, those due first, if the pool has become too small for their number."""
        out = [(record.until, slot) for slot, record in self._records.items() if record.state.is_ejected]
        for _, slot in sorted(out)[: max(len(out) - self.settings.most_ejected(self._store.count), 0)]:
            self._put(slot, self._records[slot], State.IN)

    def _changed(self) -> None:
        self.ejected = tuple(
            Ejected(record.endpoint, record.reason, record.until)
            for record in self._records.values()
            if record.state.is_ejected
        )
        self._observer.endpoints_ejected(len(self.ejected))
        self._notify()

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()


_ENTRY_BYTES = 80
_MOST_ENTRIES = MOST_PAYLOAD_BYTES // _ENTRY_BYTES


class _Failing(msgspec.Struct, frozen=True, array_like=True, gc=False):
    address: str
    seconds: float | None
    """Remaining time of its ejection; 0 if it is used again, None for a suspicion."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[_Failing]).decode


class SharedFailures(Shareable):
    """Sends changes of the endpoints that this picker suspects or ejects.

    Another picker's suspicion leads to a probe of the port, and its ejection to an ejection, within the limit of this
    picker. After an ejection, each picker makes its own trial.
    """

    share_name = "failures"

    def __init__(self, detector: OutlierDetector, store: Datastore) -> None:
        self._detector = detector
        self._store = store
        self._sent: dict[str, bool] = {}
        """Addresses that were sent: true for an ejected endpoint, false for a suspected one."""
        self._renews = False

    def renew(self) -> None:
        self._renews = True

    def changes(self, snapshot: Snapshot) -> bytes | None:  # noqa: ARG002  the detector is current
        found, sent = dict(self._detector.own_failures), self._sent
        renews, self._renews = self._renews, False
        entries = [
            _Failing(address, seconds)
            for address, seconds in found.items()
            if renews or sent.get(address) is not (seconds is not None)
        ]
        entries += [_Failing(address, 0.0) for address in sent if sent[address] and address not in found]
        self._sent = {address: seconds is not None for address, seconds in found.items()}
        return _encode(entries[:_MOST_ENTRIES]) if entries else None

    def apply(self, peer: str, payload: bytes, snapshot: Snapshot) -> int:  # noqa: ARG002  all peers count equally
        entries = _decode(payload)
        for entry in entries[:_MOST_ENTRIES]:
            found = self._store.find(entry.address)
            if found is None:
                continue
            if entry.seconds is None:
                self._detector.suspect(found[1])
            else:
                self._detector.ejected_by_peer(found[1], entry.seconds)
        return len(entries)
