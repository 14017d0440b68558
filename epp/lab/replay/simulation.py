# SPDX-License-Identifier: Apache-2.0
"""Pickers and their fleet in virtual time: the real pipeline, datastore and polls, and simulated engines.

Nothing depends on the speed of the machine: equal traffic and seeds give equal outcomes.
"""

import asyncio
import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from epp.config import LoadedConfig
from epp.framework import Headers
from epp.framework.clock import ManualClock
from epp.framework.errors import RequestError
from epp.framework.headers import KV_CACHE_SOURCE, PREFILLER, SESSION_TOKEN
from epp.lab.replay.fleet import HOP_SECONDS, JITTER_SECONDS, PAGE_SECONDS, Fleet, Page, ReplayOptions, Server
from epp.lab.replay.outcome import Outcome, Recorder, Status
from epp.lab.replay.replicas import PUBLISH_SECONDS, Publisher, Replica, VirtualLoop, Watch, run_virtual
from epp.lab.replay.traffic import Arrival
from epp.lab.sim.work import Emission, SimRequest
from epp.routing.director import Cause
from epp.routing.director.routing import Routing
from epp.routing.director.waiting import PendingRequest

_START = 1000.0
"""Start of the replay on the clock."""
LEAD_SECONDS = 1.0
"""Time for polls before the first request."""
_TOO_LONG = b'{"error":{"message":"the prompt is longer than the context","type":"BadRequestError","code":400}}'
_FIRST_PIECE = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
_MOST_SESSION_TOKENS = 100_000
TIMELINE_SAMPLES = 500
"""Samples of the load of servers, at most twice as many."""


class _Place:
    """A server in the pool."""

    __slots__ = ("alarm", "endpoint", "engine", "number", "page", "page_at", "publisher", "server")

    def __init__(self, number: int, server: Server) -> None:
        self.number = number
        self.server = server
        self.endpoint = server.endpoint
        self.engine = server.make(server.profile)
        self.page = Page.of(self.engine)
        self.page_at = -math.inf
        self.alarm = math.inf
        """Time of its next scheduled event."""
        self.publisher: Publisher | None = None
        """Publisher of KV events, if a plugin reads them."""


@dataclass(slots=True, eq=False)
class _Open:
    """A request in flight."""

    number: int
    arrival: Arrival
    sent_at: float
    waiting: "asyncio.Task[None] | None" = None
    place: _Place | None = None
    routing: Routing | None = None
    request: SimRequest | None = None
    prefiller: _Place | None = None
    """Server that computes the prompt, if another one generates the answer."""
    ttft: float | None = None


class Simulation:
    """One fleet, one configuration and one run of the traffic."""

    def __init__(self, config: LoadedConfig, fleet: Fleet, traffic: Iterable[Arrival], options: ReplayOptions) -> None:
        self._clock = ManualClock(_START)
        self._config = config
        self._fleet = fleet
        self._arrivals: Iterator[Arrival] = iter(traffic)
        self._options = options
        self._draws = random.Random(options.seed)  # noqa: S311  not for secrets
        self._replicas: list[Replica] = []
        self._places = [_Place(number, server) for number, server in enumerate(fleet.servers)]
        self._by_address = {place.endpoint.hostport: place for place in self._places}
        self._open: dict[int, _Open] = {}
        self._recorder = Recorder(fleet)
        self._session_tokens: dict[str, str] = {}
        self._all_arrived = False
        self._sample_seconds = 1.0
        self._regret_every = options.regret_every * max(1, len(self._places) // 16)
        self._stopped = False

    def run(self, report: Callable[["Simulation"], bool] | None = None) -> Outcome:
        """Send all requests and wait for the last answer.

        `report` is called after each interval of virtual time (see ReplayOptions); the run stops if it returns False.
        """
        return run_virtual(self._main(report), self._clock)

    @property
    def seconds(self) -> float:
        """Virtual time since the start of the trace."""
        return max(0.0, self._clock.time - _START - LEAD_SECONDS)

    def outcome(self) -> Outcome:
        return self._recorder.outcome([place.engine for place in self._places], stopped=self._stopped)

    async def _main(self, report: Callable[["Simulation"], bool] | None) -> Outcome:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)  # noqa: S101
        self._loop = loop
        self._done = self._loop.create_future()
        self._loop.set_exception_handler(self._failed)
        seeds = [b"replay %d %d" % (self._options.seed, number) for number in range(self._options.pickers)]
        self._replicas = [Replica(self._config, self._fleet, self._clock, seed, self._options) for seed in seeds]
        if any(replica.kv_event_readers for replica in self._replicas):
            for place in self._places:
                place.publisher = Publisher(place.server.profile.block_size)
                place.engine.cache.take_changes()  # the first call starts to record them
        sweeps = [asyncio.create_task(sweep) for replica in self._replicas for sweep in replica.sweeps()]
        for place in self._places:
            place.engine.advance(self._clock.time)
        offset = self._draws.random() if self._options.seed else 0.0
        for place in self._places:
            phase = self._options.poll_seconds * ((place.number / len(self._places) + offset) % 1.0)
            for replica in self._replicas:
                if (watch := replica.watches[place.number]) is not None:
                    self._loop.after(phase, self._fetch, place, watch)
        for number, replica in enumerate(() if self._options.share_seconds is None else self._replicas):
            self._loop.after(replica.exchange.batch_seconds * number / len(self._replicas), self._keep_sharing, replica)
        self._schedule_next_arrival()
        self._loop.after(LEAD_SECONDS, self._sample)
        if report is not None:
            self._loop.after(LEAD_SECONDS + self._options.report_seconds, self._report_progress, report)
        try:
            await self._done
        finally:
            for task in sweeps:
                task.cancel()
        return self.outcome()

    def _failed(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self._done.done():
            error = context.get("exception")
            self._done.set_exception(error if isinstance(error, Exception) else RuntimeError(context["message"]))

    def _end_if_over(self) -> None:
        if self._all_arrived and not self._open and not self._done.done():
            self._done.set_result(None)

    def _report_progress(self, report: Callable[["Simulation"], bool]) -> None:
        if report(self):
            self._loop.after(self._options.report_seconds, self._report_progress, report)
        else:
            self._stopped = True
            if not self._done.done():
                self._done.set_result(None)

    def _sample(self) -> None:
        """Record the load of the servers, at intervals that grow with the length of the replay."""
        for place in self._places:
            self._advance(place)
        self._recorder.load(self.seconds, [place.engine.gauges() for place in self._places])
        self._sample_seconds = max(self._sample_seconds, self.seconds / TIMELINE_SAMPLES)
        self._loop.after(self._sample_seconds, self._sample)

    # Polls

    def _fetch(self, place: _Place, watch: Watch) -> None:
        if self._clock.time - place.page_at >= self._options.page_seconds:
            self._advance(place)
            place.page, place.page_at = place.page.renewed(place.engine), self._clock.time
        self._loop.after(PAGE_SECONDS + place.server.network_seconds, self._report, place, watch, place.page)

    def _report(self, place: _Place, watch: Watch, page: Page) -> None:
        self._loop.after(watch.take(page) - PAGE_SECONDS, self._fetch, place, watch)

    def _share(self, replica: Replica) -> None:
        """Send the changes of a picker to the others, if they share state."""
        seconds = self._options.share_seconds
        if seconds is None:
            return
        if (batch := replica.exchange.collect()) is not None:
            for other in self._replicas:
                if other is not replica:
                    self._loop.after(seconds, other.exchange.apply, batch, seconds)
        replica.exchange.sweep()
        replica.shared_at = self._clock.time

    def _keep_sharing(self, replica: Replica) -> None:
        """Share at intervals; requests can trigger an earlier batch."""
        due = replica.shared_at + replica.exchange.batch_seconds
        if self._clock.time >= due:
            self._share(replica)
            due = self._clock.time + replica.exchange.batch_seconds
        self._loop.at(due, self._keep_sharing, replica)

    # Requests

    def _schedule_next_arrival(self) -> None:
        arrival = next(self._arrivals, None)
        until = self._options.duration
        if arrival is None or (until is not None and arrival.at > until):
            self._all_arrived = True
            self._end_if_over()
            return
        late = JITTER_SECONDS * self._draws.random() if self._options.seed else 0.0
        due = max(self._clock.time, _START + LEAD_SECONDS + arrival.at + late)
        self._loop.at(due, self._arrive, arrival)

    def _arrive(self, arrival: Arrival) -> None:
        number = self._recorder.arrived(arrival)
        one = self._open[number] = _Open(number, arrival, self._clock.time)
        replica = self._replicas[self._draws.randrange(len(self._replicas))]
        parsed = None if isinstance(arrival.body, bytes) else arrival.body
        body = b"" if isinstance(arrival.body, msgspec.Struct) else arrival.body
        token = self._session_tokens.get(arrival.session)
        headers = Headers.unique(arrival.headers if token is None else {**arrival.headers, SESSION_TOKEN: token})
        try:
            outcome = replica.director.route(headers, body, None, parsed=parsed)
        except RequestError:
            self._close(one, Status.REFUSED)
        else:
            self._loop.after(self._options.timeout_seconds, self._give_up, one)
            if isinstance(outcome, PendingRequest):
                one.waiting = self._loop.create_task(self._wait(one, outcome))
            else:
                self._routed(one, outcome)
            if self._clock.time - replica.shared_at >= replica.exchange.batch_seconds:
                self._share(replica)
        self._schedule_next_arrival()

    async def _wait(self, one: _Open, pending: PendingRequest) -> None:
        """Wait until the queued request is dispatched or refused."""
        try:
            await pending.settle()
            routing = pending.routing()
        except asyncio.CancelledError:
            pending.abandon()
            raise
        except RequestError:
            if one.number in self._open:
                self._close(one, Status.REFUSED)
            return
        one.waiting = None
        if one.number in self._open:
            self._recorder.queued[one.number] = self._clock.time - one.sent_at
            self._routed(one, routing)
        else:
            routing.complete(Cause.CLIENT_DISCONNECT)

    def _routed(self, one: _Open, routing: Routing) -> None:
        place = one.place = self._by_address[routing.result.targets[0].hostport]
        one.routing = routing
        self._recorder.server[one.number] = place.number
        one.request = request = msgspec.structs.replace(one.arrival.work(place.server.profile), request_id=one.number)
        one.prefiller = self._by_address.get(routing.result.destination.headers.get(PREFILLER, ""))
        routing.let_evict(partial(self._evicted, one))
        if one.prefiller is None and self._regret_every and one.number % self._regret_every == 0:
            self._recorder.regret[one.number] = self._regret(one.arrival, place, request)
        source = self._by_address.get(routing.result.destination.headers.get(KV_CACHE_SOURCE, ""))
        if one.prefiller is None:
            one.request, seconds = self._with_copy(request, place, source)
            self._send(place, one.request, HOP_SECONDS + place.server.network_seconds + seconds)
        else:
            prompt, seconds = self._with_copy(request, one.prefiller, source)
            self._send(one.prefiller, msgspec.structs.replace(prompt, output_tokens=1), 2 * HOP_SECONDS + seconds)

    def _with_copy(self, request: SimRequest, place: _Place, source: _Place | None) -> tuple[SimRequest, float]:
        """Return the request with the tokens that it copies from another server, and the seconds of the copy."""
        if source is None:
            return request, 0.0
        self._advance(place)
        self._advance(source)
        held = source.engine.cached_tokens(request)
        seconds = max(0, held - place.engine.cached_tokens(request)) * self._options.transfer_seconds_per_token
        return msgspec.structs.replace(request, transferred_tokens=held), seconds

    def _regret(self, arrival: Arrival, chosen: _Place, request: SimRequest) -> float:
        """Return the regret of a choice; see `Columns.regret`."""
        profile = chosen.server.profile
        work = {(profile.block_size, profile.lora_adapters): request}
        best, own = math.inf, math.nan
        for place in self._places:
            profile = place.server.profile
            if place is not chosen and not place.server.may_answer(arrival.prompt_tokens + arrival.output_tokens):
                continue
            key = profile.block_size, profile.lora_adapters
            if key not in work:
                work[key] = arrival.work(profile)
            self._advance(place)
            seconds = place.engine.seconds_to_end(work[key]) + 2 * place.server.network_seconds
            best = min(best, seconds)
            own = seconds if place is chosen else own
        return own - best

    def _send(self, place: _Place, request: SimRequest, seconds: float) -> None:
        """Submit a request to an engine after `seconds` and the overhead of its server."""
        self._loop.after(seconds + place.server.profile.overhead_seconds, self._submit, place, request)

    def _submit(self, place: _Place, request: SimRequest) -> None:
        one = self._open.get(request.request_id)
        if one is None:
            return
        if request.prompt_tokens + request.output_tokens > place.server.profile.max_model_len:
            self._too_long(one)
            return
        if place.publisher is not None and one.routing is not None:
            place.publisher.learn(request, one.arrival.token_ids().tolist(), one.routing.request.model)
        self._advance(place)
        place.engine.submit(request)
        self._set_alarm(place)

    def _too_long(self, one: _Open) -> None:
        """Answer with 400, as a server does if a request exceeds its context length."""
        routing = one.routing
        assert routing is not None and one.place is not None  # noqa: PT018, S101
        self._close(one, Status.REFUSED)
        routing.served_by(one.place.endpoint.hostport)
        routing.response_started(400, Headers, event_stream=False)
        routing.response_piece(_TOO_LONG, last=True, now=self._clock.now)
        routing.complete(Cause.NATURAL)

    def _close(self, one: _Open, status: Status) -> None:
        del self._open[one.number]
        for place in (one.place, one.prefiller):
            if place is not None and place.publisher is not None:
                place.publisher.forget(one.number)
        self._recorder.status[one.number] = status
        self._end_if_over()

    def _give_up(self, one: _Open) -> None:
        """Disconnect the client unless it has a first token."""
        if one.ttft is None and one.number in self._open:
            self._abort(one, Status.TIMED_OUT, Cause.CLIENT_DISCONNECT)

    def _evicted(self, one: _Open) -> None:
        if one.number in self._open and one.routing is not None and one.routing.eviction is not None:
            self._abort(one, Status.EVICTED, Cause.EVICTED)

    def _abort(self, one: _Open, status: Status, cause: Cause) -> None:
        if one.waiting is not None:
            one.waiting.cancel()
        for place in filter(None, (one.place, one.prefiller)):
            self._advance(place)
            place.engine.abort(one.number)
            self._set_alarm(place)
        self._close(one, status)
        if one.routing is not None:
            one.routing.complete(cause)

    def _tick(self, place: _Place, due: float) -> None:
        if place.alarm == due:
            place.alarm = math.inf
            self._advance(place)
            self._set_alarm(place)

    def _advance(self, place: _Place) -> None:
        for event in place.engine.advance(self._clock.time):
            back = HOP_SECONDS + place.server.network_seconds
            self._loop.at(event.at_seconds + back, self._answered, place, event)
        if place.publisher is not None and (changes := place.engine.cache.take_changes()) is not None:
            events = place.publisher.events(changes)
            for replica in self._replicas:
                self._loop.after(PUBLISH_SECONDS, replica.deliver, place.endpoint, events)

    def _set_alarm(self, place: _Place) -> None:
        due = place.engine.next_event_at
        if due is None:
            place.alarm = math.inf
        elif due != place.alarm:
            place.alarm = due
            self._loop.at(due, self._tick, place, due)

    def _answered(self, place: _Place, event: Emission) -> None:
        one = self._open.get(event.request_id)
        if one is None or one.routing is None or one.place is None or one.request is None:
            return
        if place is one.prefiller:
            # Transfer the KV cache to the decode server, which computes the last token of the prompt.
            size = one.request.prompt_tokens
            arrived = msgspec.structs.replace(one.request, transferred_tokens=size)
            self._send(one.place, arrived, HOP_SECONDS + size * self._options.transfer_seconds_per_token)
            return
        routing, now = one.routing, self._clock.now
        if one.ttft is None:
            one.ttft = self._recorder.ttft[one.number] = self._clock.time - one.sent_at
            routing.served_by(one.place.endpoint.hostport)
            added = routing.response_started(200, Headers, event_stream=True)
            if one.arrival.session and SESSION_TOKEN in added:
                self._session_tokens.pop(one.arrival.session, None)
                self._session_tokens[one.arrival.session] = added[SESSION_TOKEN]
                if len(self._session_tokens) > _MOST_SESSION_TOKENS:
                    del self._session_tokens[next(iter(self._session_tokens))]
            routing.response_piece(_FIRST_PIECE, last=False, now=now)
        if event.finish_reason is not None:
            self._recorder.total[one.number] = self._clock.time - one.sent_at
            self._recorder.cached_tokens[one.number] = event.cached_tokens
            usage = _usage(one.request, event.cached_tokens if one.place.publisher else None)
            self._close(one, Status.SERVED)
            routing.response_piece(usage, last=True, now=now)
            routing.report()
            routing.complete(Cause.NATURAL)


def _usage(request: SimRequest, cached_tokens: int | None) -> bytes:
    prompt, answer = request.prompt_tokens, request.output_tokens
    details = b"" if cached_tokens is None else b',"prompt_tokens_details":{"cached_tokens":%d}' % cached_tokens
    return (
        b'data: {"choices":[],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d%b}}\n\n'
        b"data: [DONE]\n\n" % (prompt, prompt + answer, answer, details)
    )
