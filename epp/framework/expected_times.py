# SPDX-License-Identifier: Apache-2.0
"""Prefill and generation rates of endpoints, by slot; expected times, and the latency targets of requests."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from math import inf, isnan, nan
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from epp.framework.arrays import Floats, Mask, Positions, any_true, read_only
from epp.framework.candidates import Candidates
from epp.framework.headers import SLO_TTFT_MS
from epp.framework.load import comparable_load, is_known, reported_requests
from epp.framework.request import DataKey, Headers, PrefixMatch, Request
from epp.framework.snapshot import IN_FLIGHT, IN_FLIGHT_TOKENS, LOAD_AT, RUNNING, WAITING, Column, Snapshot

_ZERO, _ONE, _INFINITE = (read_only(np.array(number)) for number in (0.0, 1.0, np.inf))
"""Zero-dimensional arrays, which cost NumPy half as much as floats."""
DEFAULT_OUTPUT_TOKENS = 200.0
"""Assumed output tokens of a request before the first response."""
DEFAULT_SOURCE = "default"
"""Source of rates that come neither from a profile nor from responses."""
TARGET_IN_REACH: DataKey[bool] = DataKey("target-in-reach")
"""Whether any endpoint is expected to meet the latency limits of the request; missing without an estimate."""
_MS = 1e-3
_NEGLIGIBLE = 0.05
"""Share of the load below which a correction is skipped."""


class BySlot(Protocol):
    """Arrays with one number for each slot, or for each of several slots."""

    def at(self, slots: Positions) -> Self:
        """Return the numbers of these slots, in this order."""


T = TypeVar("T", bound=BySlot)


class Reported(Generic[T]):
    """Arrays built from columns of a snapshot, cached until one of these columns changes.

    Use it for columns that change with reports; columns that change with each request, such as IN_FLIGHT, would rebuild
    the arrays each time. Pass the same function at each call; it must read only these columns and constants.
    """

    def __init__(self, *columns: Column) -> None:
        self._names = tuple(column.name for column in columns)
        self._arrays: tuple[Floats | None, ...] = ()
        self._by_slot: T | None = None
        self._available: Positions | None = None
        self._of_available: T | None = None

    def of(self, candidates: Candidates, build: Callable[[Snapshot], T]) -> T | None:
        """Return the arrays of the candidates; None if the candidates override columns, because reports are stale."""
        if candidates.hides_load:
            return None
        by_slot, slots = self.by_slot(candidates.snapshot, build), candidates.slots
        if slots is self._available and self._of_available is not None:
            return self._of_available
        found = by_slot.at(slots)
        if slots is candidates.snapshot.available:  # most requests
            self._available, self._of_available = slots, found
        return found

    def by_slot(self, snapshot: Snapshot, build: Callable[[Snapshot], T]) -> T:
        """Return the arrays of all slots."""
        columns = snapshot.columns
        if self._by_slot is not None:
            for name, array in zip(self._names, self._arrays, strict=True):
                if columns.get(name) is not array:  # a column is replaced as a whole
                    break
            else:
                return self._by_slot
        self._arrays = tuple([columns.get(name) for name in self._names])
        self._of_available = None
        self._by_slot = build(snapshot)
        return self._by_slot


class EngineQueues(NamedTuple):
    """Wait for a place in the batch, `max(waiting, in_flight - room) * turn_seconds`; one number for each endpoint.

    A place becomes free every `output tokens * ITL / batch` seconds. The batch of an engine is full if it has a queue,
    or if it runs its maximum number of requests, if known. The number of waiting requests is the reported one, or the
    number of requests in flight without a place if that is larger, so that new requests count immediately.
    """

    waiting: Floats
    """Reported waiting requests, 0 or more, including this request if the number of places is known."""
    room: Floats
    """Requests in flight beyond which requests wait; infinite if neither a queue nor the places are known."""
    turn_seconds: Floats
    """Time until the next place becomes free."""

    @classmethod
    def of(cls, running: Floats, waiting: Floats, turn_seconds: Floats, places: Floats | None) -> "EngineQueues":
        """Return the queues, given one number for each endpoint.

        `running` is 1 or more, `waiting` NaN if unknown, and `places` infinite if unknown, or None if all are unknown.
        """
        is_queue = waiting > _ZERO  # not so for NaN
        least, room = np.where(is_queue, waiting, _ZERO), np.where(is_queue, running, _INFINITE)
        if places is not None:
            least = np.maximum(least, running + np.fmax(waiting, _ZERO) + _ONE - places)
            room = np.minimum(room, places - _ONE)
        return cls(least, room, turn_seconds)

    def at(self, slots: Positions) -> "EngineQueues":
        """Return the queues of these endpoints."""
        return EngineQueues(self.waiting[slots], self.room[slots], self.turn_seconds[slots])

    def seconds(self, in_flight: Floats) -> Floats:
        """Return the wait of the next request, given the requests in flight."""
        seconds = in_flight - self.room
        np.maximum(seconds, self.waiting, out=seconds)
        seconds *= self.turn_seconds
        return seconds

    def seconds_at(self, slot: int, in_flight: float) -> float:
        """Return the same for one endpoint."""
        return max(in_flight - self.room.item(slot), self.waiting.item(slot)) * self.turn_seconds.item(slot)


class _Terms(NamedTuple):
    """Terms of expected times according to the last reports: one number for each slot or candidate."""

    prefill_tokens_per_second: Floats
    itl_base_seconds: Floats
    itl_seconds_per_request: Floats
    running: Floats
    """Requests in the batch; NaN if unknown."""
    queues: EngineQueues | None
    """None if all queues are empty."""
    is_known: bool
    """Whether all batches are known."""

    def at(self, slots: Positions) -> "_Terms":
        prefill, base, per_request, running, queues, _ = self
        running = running[slots]
        queues = None if queues is None else queues.at(slots)
        return _Terms(prefill[slots], base[slots], per_request[slots], running, queues, is_known(running))


class _Ages(NamedTuple):
    """Age of reports and load of endpoints, for each slot or candidate; means over all candidates."""

    load_at: Floats
    requests: Floats
    """Reported running and waiting requests; 0 without a report."""
    answer_seconds: Floats
    """Time to generate an answer at this load."""
    total: float = 0.0
    """Sum of `requests`."""
    mean_at: float = inf
    """Mean of `load_at` over these requests."""
    mean_seconds: float = 0.0
    """Mean of `answer_seconds` over these requests."""

    def at(self, slots: Positions) -> "_Ages":
        load_at, requests, seconds = self.load_at[slots], self.requests[slots], self.answer_seconds[slots]
        total = float(requests.sum())
        if not total:
            return _Ages(load_at, requests, seconds)
        of_busy = np.where(requests > _ZERO, load_at, _ZERO)
        means = (float(requests.dot(values)) / total for values in (of_busy, seconds))
        return _Ages(load_at, requests, seconds, total, *means)


@dataclass(frozen=True, slots=True)
class EndpointRates:
    """Read-only arrays by slot. Values are finite and above 0 unless a field says otherwise."""

    prefill_tokens_per_second: Floats
    """Prompt tokens that the whole endpoint computes per second."""
    itl_base_seconds: Floats
    """Alpha of `ITL = alpha + beta * batch`: time between two tokens of a request, without the share of the batch."""
    itl_seconds_per_request: Floats
    """Beta: time that each request in the batch adds, including the request itself; 0 or more."""
    ttft_base_seconds: Floats
    """Gamma of `TTFT = gamma + delta * tokens * batch`; NaN without a profile that has it."""
    ttft_seconds_per_token: Floats
    """Delta; NaN without a profile that has it."""
    kinds: NDArray[np.intp]
    """Index in `sources`, for rates that are not learned."""
    sources: tuple[tuple[str, str], ...]
    """Sources of rates that are not learned: of the prefill rate, and of the ITL."""
    prefill_samples: NDArray[np.intp]
    """Responses from which the prefill rate was learned; 0 if it is not learned."""
    itl_samples: NDArray[np.intp]
    """Responses from which the ITL was learned; 0 if it is not learned."""
    output_tokens: float = DEFAULT_OUTPUT_TOKENS
    """Mean output tokens of recent responses."""
    places: Floats | None = None
    """Maximum batch size of each endpoint, infinite if unknown; None if all are unknown."""
    _reported: Reported[_Terms] = field(init=False, repr=False, compare=False)
    _ages: Reported[_Ages] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        assign = object.__setattr__
        for each in fields(self):
            if each.init and isinstance(array := getattr(self, each.name), np.ndarray):
                assign(self, each.name, read_only(array.view()))
        assign(self, "_reported", Reported(RUNNING, WAITING))
        assign(self, "_ages", Reported(RUNNING, WAITING, LOAD_AT))

    @property
    def known(self) -> Mask:
        """Mark the slots whose prefill rate comes from a profile, or was learned at this or at other endpoints."""
        by_kind = np.array([prefill != DEFAULT_SOURCE for prefill, _ in self.sources], dtype=np.bool_)
        known: Mask = (self.prefill_samples > 0) | by_kind[self.kinds]
        return known

    def prefill_seconds(self, candidates: Candidates, tokens: Floats) -> Floats:
        """Return the time in which each candidate computes these prompt tokens."""
        return tokens / self.prefill_tokens_per_second[candidates.slots]

    def itl_seconds(self, candidates: Candidates, batch: Floats) -> Floats:
        """Return the time between two tokens of one request in a batch of this size."""
        slots = candidates.slots
        return self.itl_base_seconds[slots] + self.itl_seconds_per_request[slots] * batch

    def ttft_seconds(self, candidates: Candidates, uncached: Floats) -> Floats:
        """Return the time to the first token, given the uncached prompt tokens for each candidate.

        The request waits for a place in the batch, and for the prompt tokens in flight. A plugin that calls this must
        read IN_FLIGHT_TOKENS and IN_FLIGHT, and list LOAD_INPUTS in `may_read`.
        """
        terms = self._terms(candidates)
        seconds = candidates.values(IN_FLIGHT_TOKENS) + uncached
        seconds /= terms.prefill_tokens_per_second
        if terms.queues is not None:
            seconds += terms.queues.seconds(candidates.values(IN_FLIGHT))
        return seconds

    def profiled_ttft_seconds(self, candidates: Candidates, uncached: Floats, batch: Floats) -> Floats:
        """Return `gamma + delta * uncached * batch` if a profile has gamma and delta, else `ttft_seconds`."""
        slots = candidates.slots
        by_profile = self.ttft_base_seconds[slots] + self.ttft_seconds_per_token[slots] * uncached * batch
        return np.where(np.isnan(by_profile), self.ttft_seconds(candidates, uncached), by_profile)

    def ttft_seconds_at(self, candidates: Candidates, slot: int, uncached: float) -> float:
        """Return `ttft_seconds` of one candidate, at a fraction of the cost; NaN if its batch is not reported."""
        if candidates.hides_load:
            return nan
        snapshot = candidates.snapshot
        terms = self._reported.by_slot(snapshot, self._reported_terms)
        if isnan(terms.running.item(slot)):
            return nan
        tokens = snapshot.column(IN_FLIGHT_TOKENS).item(slot) + uncached
        prefill = tokens / terms.prefill_tokens_per_second.item(slot)
        if terms.queues is None:
            return prefill
        return prefill + terms.queues.seconds_at(slot, snapshot.column(IN_FLIGHT).item(slot))

    def seconds(self, candidates: Candidates, tokens: Floats, output_tokens: float | Floats) -> Floats:
        """Return the time until each candidate has generated `output_tokens`.

        `tokens` are the prompt tokens that each candidate must compute first, including those in flight. The request is
        added to the batch. A plugin that calls this must read IN_FLIGHT, and list LOAD_INPUTS in `may_read`.
        """
        terms, in_flight = self._terms(candidates), candidates.values(IN_FLIGHT)
        seconds = tokens / terms.prefill_tokens_per_second
        if terms.queues is not None:
            seconds += terms.queues.seconds(in_flight)
        itl = np.maximum(terms.running, in_flight)
        itl += _ONE
        itl *= terms.itl_seconds_per_request
        itl += terms.itl_base_seconds
        itl *= output_tokens
        seconds += itl
        return seconds

    def weighed_by_age(self, candidates: Candidates) -> Candidates:
        """Return the candidates with a lower load by other clients, the lower the older the report is.

        Requests of others, `running + waiting - in flight`, have the weight `1 / (1 + O * (a / S)^2)`, where O is their
        number at all candidates, `a` the time since the report changed, and S the mean time to generate an answer. Of
        100 requests of 8 s, nearly all count after 0.1 s and none after 10 s; then only requests in flight decide.
        `a` is at most its mean over all requests, because a report of few requests seldom changes even if it is fresh.

        This is the weight with the least squared error (Wiener filter), signal / (signal + noise). Signal: N
        independent requests at an endpoint have the variance N (Poisson), which distinguishes n endpoints; O = n * N.
        Noise: others have sent `O * a / S` requests since (Little's law), all to one of n endpoints, because all
        readers of the same reports make the same choice: the mean squared error is `(O * a / S)^2 / n`.

        A plugin that calls this must read IN_FLIGHT, and list LOAD_INPUTS and LOAD_AT in `may_read`.
        """
        ages, now = self._ages.of(candidates, self._reported_ages), candidates.now
        if ages is None or not ages.mean_at < now:
            return candidates
        square = ages.mean_seconds**2
        negligible = _NEGLIGIBLE * square / (now - ages.mean_at) ** 2
        if ages.total <= negligible:
            return candidates
        in_flight = candidates.values(IN_FLIGHT)
        others = np.maximum(ages.requests - in_flight, _ZERO).sum()
        if others <= negligible:
            return candidates
        running, waiting = candidates.values(RUNNING), candidates.values(WAITING)
        weight = square / (square + others * (now - np.fmax(ages.load_at, ages.mean_at)) ** 2)
        own = np.minimum(running, in_flight)
        return candidates.with_load({RUNNING: own + weight * (running - own), WAITING: weight * waiting})

    def _reported_ages(self, snapshot: Snapshot) -> _Ages:
        requests = reported_requests(snapshot.column(WAITING), snapshot.column(RUNNING))
        itl = self.itl_base_seconds + self.itl_seconds_per_request * requests
        return _Ages(snapshot.column(LOAD_AT), requests, self.output_tokens * itl)

    def _terms(self, candidates: Candidates) -> _Terms:
        """Return the terms of each candidate, with estimates of unreported batches."""
        terms = self._reported.of(candidates, self._reported_terms)
        if terms is not None and terms.is_known:
            return terms
        return self._terms_of(
            comparable_load(candidates, RUNNING, as_reported=True), candidates.values(WAITING), candidates.slots
        )

    def _reported_terms(self, snapshot: Snapshot) -> _Terms:
        return self._terms_of(snapshot.column(RUNNING), snapshot.column(WAITING), slice(None))

    def _terms_of(self, running: Floats, waiting: Floats, slots: Positions | slice) -> _Terms:
        rate, base = self.prefill_tokens_per_second[slots], self.itl_base_seconds[slots]
        per_request = self.itl_seconds_per_request[slots]
        queues = None
        if self.places is not None or any_true(waiting > _ZERO):
            batch = np.maximum(running, _ONE)
            turn_seconds = self.output_tokens * (base + per_request * batch) / batch
            places = None if self.places is None else self.places[slots]
            queues = EngineQueues.of(batch, waiting, turn_seconds, places)
        return _Terms(rate, base, per_request, running, queues, is_known=True)


ENDPOINT_RATES: DataKey[EndpointRates] = DataKey("endpoint-rates", "endpoint-rates-producer")
"""Prefill and generation rates of all endpoints, by slot."""


def uncached_tokens(request: Request, candidates: Candidates, match: PrefixMatch | None) -> Floats:
    """Return the prompt tokens that each candidate must compute; without match data, the whole prompt."""
    if match is None:
        return np.full(len(candidates), float(request.prompt_tokens))
    uncached: Floats = np.array(float(request.prompt_tokens)) - match.matched_tokens(candidates)
    np.maximum(uncached, _ZERO, out=uncached)
    return uncached


def batch_sizes(candidates: Candidates) -> Floats:
    """Return the batch size of each candidate: the reported one, or the requests of this picker in flight if larger.

    New requests of this picker count immediately, requests of other clients when they are reported. An unreported batch
    is estimated: a plugin that calls this must list LOAD_INPUTS in `may_read`.
    """
    return np.maximum(comparable_load(candidates, RUNNING, as_reported=True), candidates.values(IN_FLIGHT))


def target_seconds(headers: Headers, names: tuple[str, ...], default_ms: float = 0.0) -> float:
    """Return the target in seconds, infinite for no target; the default replaces a value that is not above 0."""
    try:
        milliseconds = float(headers.first_of(*names) or 0.0)
    except ValueError:
        milliseconds = 0.0
    if not milliseconds > 0:
        milliseconds = default_ms
    return milliseconds * _MS if milliseconds > 0 else inf


def waited_seconds(request: Request, candidates: Candidates) -> float:
    """Return the time since the request arrived; 0 if the candidates have no time."""
    waited = candidates.now - request.received_at
    return waited if waited > 0 else 0.0


def ttft_target_seconds(headers: Headers) -> float:
    """Return the target for the time to the first token; infinite for no target."""
    return target_seconds(headers, SLO_TTFT_MS)
