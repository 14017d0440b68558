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
"""Arrays of no dimension: NumPy works with them at half the cost of floats."""
DEFAULT_OUTPUT_TOKENS = 200.0
"""Tokens of an answer, before any was seen."""
DEFAULT_SOURCE = "default"
"""Source of rates that neither a profile nor any response supports."""
TARGET_IN_REACH: DataKey[bool] = DataKey("target-in-reach")
"""Whether any endpoint is expected to meet the latency limits of the request; missing without an estimate."""
_MS = 1e-3
_NEGLIGIBLE = 0.05
"""Share of a load that makes no difference."""


class BySlot(Protocol):
    """Arrays with one number for each slot, or for each of some slots."""

    def at(self, slots: Positions) -> Self:
        """Return the numbers of these slots, in this order."""


T = TypeVar("T", bound=BySlot)


class Reported(Generic[T]):
    """Arrays built from columns of a snapshot, kept until one of them is written.

    For columns that change with reports; columns that change with each request, such as IN_FLIGHT, would rebuild the
    arrays each time. Pass the same function at each call; it reads only these columns and constants.
    """

    def __init__(self, *columns: Column) -> None:
        self._names = tuple(column.name for column in columns)
        self._arrays: tuple[Floats | None, ...] = ()
        self._by_slot: T | None = None
        self._available: Positions | None = None
        self._of_available: T | None = None

    def of(self, candidates: Candidates, build: Callable[[Snapshot], T]) -> T | None:
        """Return the arrays of the candidates.

        None where stale load is hidden: the candidates then see other values than the columns.
        """
        if candidates.hides_load:
            return None
        by_slot, slots = self.by_slot(candidates.snapshot, build), candidates.slots
        if slots is self._available and self._of_available is not None:
            return self._of_available
        found = by_slot.at(slots)
        if slots is candidates.snapshot.available:  # as for most requests
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


class Queues(NamedTuple):
    """Wait for a place: `max(waiting, in_flight - room) * turn_seconds`; one number for each endpoint.

    A place is free once in `output tokens * ITL / batch` seconds. The batch of an engine with a queue is full, and that
    of one with as many requests as it has places, where these are known. Requests that wait for a place are those
    reported, or requests in flight without a place if there are more of them, so that new requests count at once.
    """

    waiting: Floats
    """Requests that wait according to reports, this one included where the places are known; 0 or more."""
    room: Floats
    """Requests in flight beyond which each waits; infinite where no queue and no places are known."""
    turn_seconds: Floats
    """Time until the next place is free."""

    @classmethod
    def of(cls, running: Floats, waiting: Floats, turn_seconds: Floats, places: Floats | None) -> "Queues":
        """Return the queues of endpoints with such batches, and such queues where known.

        `running` are 1 or more, `places` infinite where not known; None if not known of any.
        """
        is_queue = waiting > _ZERO  # not so for NaN
        least, room = np.where(is_queue, waiting, _ZERO), np.where(is_queue, running, _INFINITE)
        if places is not None:
            least = np.maximum(least, running + np.fmax(waiting, _ZERO) + _ONE - places)
            room = np.minimum(room, places - _ONE)
        return cls(least, room, turn_seconds)

    def at(self, slots: Positions) -> "Queues":
        """Return the queues of some of the endpoints."""
        return Queues(self.waiting[slots], self.room[slots], self.turn_seconds[slots])

    def seconds(self, in_flight: Floats) -> Floats:
        """Return the time that the next request waits where so many are in flight."""
        seconds = in_flight - self.room
        np.maximum(seconds, self.waiting, out=seconds)
        seconds *= self.turn_seconds
        return seconds

    def seconds_at(self, slot: int, in_flight: float) -> float:
        """Return the same for one of the endpoints."""
        return max(in_flight - self.room.item(slot), self.waiting.item(slot)) * self.turn_seconds.item(slot)


class _Terms(NamedTuple):
    """Terms of expected times, as endpoints last reported their load: one number for each slot or candidate."""

    prefill_tokens_per_second: Floats
    itl_base_seconds: Floats
    itl_seconds_per_request: Floats
    running: Floats
    """Requests in the batch; NaN where not known."""
    queues: Queues | None
    """None if all queues are empty."""
    is_known: bool
    """Whether the batch is known of all."""

    def at(self, slots: Positions) -> "_Terms":
        prefill, base, per_request, running, queues, _ = self
        running = running[slots]
        queues = None if queues is None else queues.at(slots)
        return _Terms(prefill[slots], base[slots], per_request[slots], running, queues, is_known(running))


class _Ages(NamedTuple):
    """How old reports are, and how busy endpoints: numbers for each slot or candidate, and for the candidates."""

    load_at: Floats
    requests: Floats
    """Reported as running or waiting; 0 for no report."""
    answer_seconds: Floats
    """Time in which an answer is generated among so many."""
    total: float = 0.0
    """Requests at all of them."""
    mean_at: float = inf
    """LOAD_AT for one of these requests, in the mean."""
    mean_seconds: float = 0.0
    """Likewise, the time for its answer."""

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
    """Arrays by slot, read-only; those without a word on NaN are finite and above 0 for every slot."""

    prefill_tokens_per_second: Floats
    """Prompt tokens that the whole endpoint computes in a second."""
    itl_base_seconds: Floats
    """Alpha of `ITL = alpha + beta * batch`: time between two tokens of a request, without the share of the batch."""
    itl_seconds_per_request: Floats
    """Beta: what each request in the batch adds, itself included; 0 or more."""
    ttft_base_seconds: Floats
    """Gamma of `TTFT = gamma + delta * tokens * batch`; NaN where no profile gives it."""
    ttft_seconds_per_token: Floats
    """Delta; NaN where no profile gives it."""
    kinds: NDArray[np.intp]
    """Which of the sources an unlearned rate has."""
    sources: tuple[tuple[str, str], ...]
    """Where rates come from as long as they are not learned: the prefill rate, the ITL."""
    prefill_samples: NDArray[np.intp]
    """Responses that the prefill rate was learned from; 0 for one that is not learned."""
    itl_samples: NDArray[np.intp]
    """Likewise, of the ITL."""
    output_tokens: float = DEFAULT_OUTPUT_TOKENS
    """Mean length of the latest answers."""
    places: Floats | None = None
    """Requests that an endpoint runs at once, infinite where not known; None if not known of any."""
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
        """Mark the slots whose prefill rate comes from a profile, or was learned there or at other endpoints."""
        by_kind = np.array([prefill != DEFAULT_SOURCE for prefill, _ in self.sources], dtype=np.bool_)
        known: Mask = (self.prefill_samples > 0) | by_kind[self.kinds]
        return known

    def prefill_seconds(self, candidates: Candidates, tokens: Floats) -> Floats:
        """Return how long each candidate computes so many prompt tokens."""
        return tokens / self.prefill_tokens_per_second[candidates.slots]

    def itl_seconds(self, candidates: Candidates, batch: Floats) -> Floats:
        """Return the time between two tokens of one request among so many, itself included."""
        slots = candidates.slots
        return self.itl_base_seconds[slots] + self.itl_seconds_per_request[slots] * batch

    def ttft_seconds(self, candidates: Candidates, uncached: Floats) -> Floats:
        """Return the time to the first token, given the uncached prompt tokens for each candidate.

        It waits for a place in the batch, and for the prompt tokens in flight. A plugin that calls this reads
        IN_FLIGHT_TOKENS and IN_FLIGHT, and lists LOAD_INPUTS in `may_read`.
        """
        terms = self._terms(candidates)
        seconds = candidates.values(IN_FLIGHT_TOKENS) + uncached
        seconds /= terms.prefill_tokens_per_second
        if terms.queues is not None:
            seconds += terms.queues.seconds(candidates.values(IN_FLIGHT))
        return seconds

    def profiled_ttft_seconds(self, candidates: Candidates, uncached: Floats, batch: Floats) -> Floats:
        """Return `gamma + delta * uncached * batch` where a profile gives gamma and delta, else `ttft_seconds`."""
        slots = candidates.slots
        by_profile = self.ttft_base_seconds[slots] + self.ttft_seconds_per_token[slots] * uncached * batch
        return np.where(np.isnan(by_profile), self.ttft_seconds(candidates, uncached), by_profile)

    def ttft_seconds_at(self, candidates: Candidates, slot: int, uncached: float) -> float:
        """Return the same for one of the candidates, at a fraction of the cost; NaN where its batch is not reported."""
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
        """Return the time until so many tokens of an answer are there.

        `tokens` are those of prompts that each candidate has to compute before, those in flight included. The request
        counts as one more in the batch. A plugin that calls this reads IN_FLIGHT, and lists LOAD_INPUTS in `may_read`.
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
        """Return the candidates with less of the load that others cause, the older the report of it.

        Requests of others, `running + waiting - in flight`, count with the weight `1 / (1 + O * (a / S)^2)`: O of them
        are at all candidates, `a` is the time since the report changed, and S the mean time in which an answer is
        generated. Of 100 that take 8 s each, nearly all count after a tenth of a second and none after ten seconds, so
        that requests in flight alone decide. No `a` is above its mean over all requests: a report of few requests
        seldom changes, however fresh it is.

        It is the weight with the least squared error (Wiener), signal / (signal + noise). Signal: N requests that came
        to an endpoint independently have the variance N (Poisson), which tells n endpoints apart; O = n * N. Noise:
        others have sent `O * a / S` requests since (Little's law), and, as all that read the same reports choose alike,
        to one of n endpoints: the square of the error has the mean `(O * a / S)^2 / n`.

        A plugin that calls this reads IN_FLIGHT, and lists LOAD_INPUTS and LOAD_AT in `may_read`.
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
        """Return the terms of each candidate, with estimates of batches that are not reported."""
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
            queues = Queues.of(batch, waiting, turn_seconds, places)
        return _Terms(rate, base, per_request, running, queues, is_known=True)


ENDPOINT_RATES: DataKey[EndpointRates] = DataKey("endpoint-rates", "endpoint-rates-producer")
"""Prefill and generation rates of all endpoints, by slot."""


def uncached_tokens(request: Request, candidates: Candidates, match: PrefixMatch | None) -> Floats:
    """Return the prompt tokens that each candidate has to compute; the whole prompt without match data."""
    if match is None:
        return np.full(len(candidates), float(request.prompt_tokens))
    uncached: Floats = np.array(float(request.prompt_tokens)) - match.matched_tokens(candidates)
    np.maximum(uncached, _ZERO, out=uncached)
    return uncached


def batch_sizes(candidates: Candidates) -> Floats:
    """Return the batch size of each candidate: the reported one, or this picker's requests in flight if that is more.

    New requests of this picker count at once, requests of other clients when they are reported. An unreported batch is
    estimated: a plugin that calls this lists LOAD_INPUTS in `may_read`.
    """
    return np.maximum(comparable_load(candidates, RUNNING, as_reported=True), candidates.values(IN_FLIGHT))


def target_seconds(headers: Headers, names: tuple[str, ...], default_ms: float = 0.0) -> float:
    """Return a target in seconds, infinite for none; one that is no number above 0 stands for the default."""
    text = headers.first_of(*names)
    try:
        milliseconds = 0.0 if text is None else float(text)
    except ValueError:
        milliseconds = 0.0
    if not milliseconds > 0:
        milliseconds = default_ms
    return milliseconds * _MS if milliseconds > 0 else inf


def waited_seconds(request: Request, candidates: Candidates) -> float:
    """Return how long ago a request came; 0 where the candidates know no time."""
    waited = candidates.now - request.received_at
    return waited if waited > 0 else 0.0


def ttft_target_seconds(headers: Headers) -> float:
    """Return the longest time to the first token that a request wants; infinite for none."""
    return target_seconds(headers, SLO_TTFT_MS)
