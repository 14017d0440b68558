# SPDX-License-Identifier: Apache-2.0
"""A picker and its fleet in virtual time: the real pipeline, datastore and polls, and simulated engines.

Nothing in here waits and nothing depends on the speed of the machine: the same trace gives the same outcome.
"""

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import msgspec

from epp.config import LoadedConfig
from epp.framework import Endpoint, Headers, ManualClock
from epp.framework.errors import RequestError
from epp.framework.headers import PREFILLER, SESSION_TOKEN
from epp.lab.sim import SimRequest
from epp.routing.director import Cause
from epp.routing.director.routing import Routing
from perf.bench.profiles.engines import MAKES, Engine, Event
from perf.bench.profiles.fleets import Fleet, Server
from perf.bench.profiles.kv_publishing import PUBLISH_SECONDS, Publisher, deliver
from perf.bench.profiles.outcome import TIMEOUT_SECONDS, Outcome, Served
from perf.bench.profiles.replicas import POLL_SECONDS, Replica, Watch
from perf.bench.profiles.workloads import Call, Trace

PAGE_SECONDS = 0.002
"""From the writing of a page to the datastore."""
HOP_SECONDS = 0.001
"""From the picker to a server, and back; also from one server to another."""
TRANSFER_SECONDS_PER_TOKEN = 128 * 1024 / 10e9
"""The KV cache of a model with 8 billion parameters, 128 KiB for each token, over a network of 10 GB/s."""
_HEADERS = [(":method", "POST"), ("content-type", "application/json"), ("x-llm-d-inference-fairness-id", "team-a")]
"""Of a tenant that may take all of it by the ready-made file with quotas."""
_TOO_LONG = b'{"error":{"message":"the prompt is longer than the context","type":"BadRequestError","code":400}}'
_FIRST_PIECE = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'


@dataclass
class _Place:
    """A server in the pool."""

    server: Server
    endpoint: Endpoint
    engine: Engine
    page: bytes = b""
    page_at: float = -math.inf
    alarm: float = math.inf
    """When its next event is in the timetable."""
    publisher: Publisher | None = None
    """Of KV events, where prompts are token ids."""


@dataclass
class _Open:
    """A request on its way."""

    number: int
    place: _Place
    routing: Routing
    served: Served
    request: SimRequest
    prefiller: _Place | None = None
    """Where its prompt is computed, where that is another server than that of the answer."""


class Simulation:
    """One fleet, one configuration and one trace."""

    def __init__(
        self, config: LoadedConfig, fleet: Fleet, trace: Trace, *, headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        self._clock = ManualClock(1000.0)
        self._start = self._clock.now()
        self._trace = trace
        self._page_seconds = fleet.page_seconds
        self._headers = headers
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = count()
        endpoints = fleet.endpoints
        seeds = [b"profiles", *(b"profiles %d" % number for number in range(1, fleet.pickers))]
        self.replicas = [Replica(config, endpoints, self._clock, seed, objects=fleet.objects) for seed in seeds]
        self.places = [
            _Place(server, endpoint, MAKES[fleet.make].engine(server.profile))
            for server, endpoint in zip(fleet.servers, endpoints, strict=True)
        ]
        if any(call.prompt_ids for call in trace.calls):
            for place in self.places:
                place.publisher = Publisher(place.server.profile.block_size)
        self._by_address = {place.endpoint.hostport: place for place in self.places}
        self._open: dict[int, _Open] = {}
        self._served: list[Served] = []
        self._session_tokens: dict[str, str] = {}

    def run(self) -> Outcome:
        """Send all requests of the trace and wait for the last answer."""
        for number, place in enumerate(self.places):
            place.engine.advance(self._start)
            for replica in self.replicas:
                self._at(POLL_SECONDS * number / len(self.places), self._fetch, place, replica.watches[number])
        lead = 1.0
        for number, call in enumerate(self._trace.calls):
            self._at(lead + call.at, self._arrive, number)
        ends = lead + self._trace.seconds + TIMEOUT_SECONDS * self._trace.slowness
        left = len(self._trace.calls)
        while self._events and (self._open or len(self._served) < left):
            due, _, action, arguments = heapq.heappop(self._events)
            self._clock.advance(max(0.0, self._start + due - self._clock.now()))
            action(*arguments)
            if due > ends + 1.0:
                break
        return Outcome(
            seconds=self._trace.seconds,
            served=tuple(self._served),
            dollars=sum(place.engine.busy_seconds * place.server.dollars_per_hour / 3600 for place in self.places),
            target=self._trace.target,
            busy={place.server.name: place.engine.busy_seconds for place in self.places},
            adapter_loads=sum(place.engine.adapter_loads for place in self.places),
        )

    def _at(self, due: float, action: Callable[..., None], *arguments: object) -> None:
        heapq.heappush(self._events, (due, next(self._numbers), action, arguments))

    @property
    def _now(self) -> float:
        return self._clock.now() - self._start

    # Polls

    def _fetch(self, place: _Place, watch: Watch) -> None:
        if self._now - place.page_at >= self._page_seconds:
            self._advance(place)
            place.page, place.page_at = _page(place), self._now
        self._at(self._now + PAGE_SECONDS + place.server.network_seconds, self._report, place, watch, place.page)

    def _report(self, place: _Place, watch: Watch, page: bytes) -> None:
        wait = watch.poll.settle(place.endpoint, page)
        now = self._clock.now()
        if watch.poll.changed or watch.store.in_flight(place.endpoint.id):
            watch.cadence.event(now)
        self._at(self._now - PAGE_SECONDS + max(wait, watch.cadence.interval(now)), self._fetch, place, watch)

    # Requests

    def _arrive(self, number: int) -> None:
        call = self._trace.calls[number]
        served = Served(at=call.at, group=call.group)
        self._served.append(served)
        replica = random.Random(number).choice(self.replicas)
        try:
            routing = replica.director.route(self._headers_of(number, call), call.body, None)
        except RequestError:
            served.refused = True
            return
        assert isinstance(routing, Routing)
        place = self._by_address[routing.result.targets[0].hostport]
        served.server = place.server.name
        plan = self._trace.plan(number, place.server.profile.block_size).request
        request = msgspec.structs.replace(plan, request_id=number)
        if place.publisher is not None:
            place.publisher.learn(request, call.prompt_ids)
        prefiller = self._by_address.get(routing.result.destination.headers.get(PREFILLER, ""))
        one = _Open(number, place, routing, served, request, prefiller)
        self._open[number] = one
        if prefiller is None:
            self._at(self._now + HOP_SECONDS + place.server.network_seconds, self._submit, place, request)
        else:
            prompt = msgspec.structs.replace(request, output_tokens=1)
            self._at(self._now + 2 * HOP_SECONDS, self._submit, prefiller, prompt)
        self._at(self._now + TIMEOUT_SECONDS * self._trace.slowness, self._give_up, one)

    def _headers_of(self, number: int, call: Call) -> Headers:
        token = self._session_tokens.get(call.session)
        session = [] if token is None else [(SESSION_TOKEN, token)]
        path = (":path", call.path)
        return Headers([*_HEADERS, path, ("x-request-id", f"r{number}"), *session, *self._headers])

    def _submit(self, place: _Place, request: SimRequest) -> None:
        one = self._open.get(request.request_id)
        if one is None:
            return
        if request.prompt_tokens + request.output_tokens > place.server.profile.max_model_len:
            self._too_long(one)
            return
        self._advance(place)
        place.engine.submit(request)
        self._set_alarm(place)

    def _prefilled(self, one: _Open) -> None:
        """Take the KV cache to the server of the answer, which computes the last token of the prompt."""
        size = one.request.prompt_tokens
        arrived = msgspec.structs.replace(one.request, transferred_tokens=size)
        seconds = size * TRANSFER_SECONDS_PER_TOKEN * self._trace.slowness
        self._at(self._now + HOP_SECONDS + seconds, self._submit, one.place, arrived)

    def _too_long(self, one: _Open) -> None:
        """Answer as a server does that cannot hold so long a request."""
        del self._open[one.number]
        one.served.refused = True
        one.routing.served_by(one.place.endpoint.hostport)
        one.routing.response_started(400, Headers, event_stream=False)
        one.routing.response_piece(_TOO_LONG, last=True, now=self._clock.now)
        one.routing.complete(Cause.NATURAL)

    def _give_up(self, one: _Open) -> None:
        if one.number in self._open and one.served.ttft is None:
            del self._open[one.number]
            for place in filter(None, (one.place, one.prefiller)):
                self._advance(place)
                place.engine.abort(one.number)
                self._set_alarm(place)
            one.routing.complete(Cause.CLIENT_DISCONNECT)

    def _tick(self, place: _Place, due: float) -> None:
        if place.alarm == due:
            place.alarm = math.inf
            self._advance(place)
            self._set_alarm(place)

    def _advance(self, place: _Place) -> None:
        for event in place.engine.advance(self._clock.now()):
            back = HOP_SECONDS + place.server.network_seconds
            self._at(event.at - self._start + back, self._answered, place, event)
        if place.publisher is not None and (events := place.publisher.changes(place.engine.cached_hashes)):
            for replica in self.replicas:
                self._at(self._now + PUBLISH_SECONDS, deliver, replica, place.endpoint, events)

    def _set_alarm(self, place: _Place) -> None:
        due = place.engine.next_event_at
        if due is None:
            place.alarm = math.inf
        elif due != place.alarm:
            place.alarm = due
            self._at(due - self._start, self._tick, place, due)

    def _answered(self, place: _Place, event: Event) -> None:
        one = self._open.get(event.request_id)
        if one is None:
            return
        if place is one.prefiller:
            self._prefilled(one)
            return
        routing, now = one.routing, self._clock.now
        if one.served.ttft is None:
            one.served.ttft = self._now - one.served.at - 1.0
            routing.served_by(one.place.endpoint.hostport)
            added = routing.response_started(200, Headers, event_stream=True)
            if (session := self._trace.calls[one.number].session) and SESSION_TOKEN in added:
                self._session_tokens[session] = added[SESSION_TOKEN]
            routing.response_piece(_FIRST_PIECE, last=False, now=now)
        if event.ended:
            del self._open[event.request_id]
            one.served.tpot = (self._now - 1.0 - one.served.at - one.served.ttft) / max(
                1, one.request.output_tokens - 1
            )
            one.served.prompt_tokens, one.served.cached_tokens = one.request.prompt_tokens, event.cached_tokens
            routing.response_piece(_usage(one), last=True, now=now)
            routing.report()
            routing.complete(Cause.NATURAL)


def _page(place: _Place) -> bytes:
    running, waiting, kv_usage = place.engine.gauges()
    profile = place.server.profile
    labels = 'engine="0",model_name="m"'
    return (
        f"vllm:num_requests_running{{{labels}}} {running}.0\n"
        f"vllm:num_requests_waiting{{{labels}}} {waiting}.0\n"
        f"vllm:kv_cache_usage_perc{{{labels}}} {kv_usage!r}\n"
        f'vllm:cache_config_info{{block_size="{profile.block_size}",num_gpu_blocks="{profile.num_gpu_blocks}"}} 1.0\n'
        f"{_lora_line(place)}"
    ).encode()


def _lora_line(place: _Place) -> str:
    """Return the series of adapters, which servers without any do not have; its value is the time."""
    if not place.server.profile.lora_adapters:
        return ""
    running, waiting = (",".join(names) for names in place.engine.adapters())
    labels = (
        f'max_lora="{place.server.profile.max_lora}",running_lora_adapters="{running}",'
        f'waiting_lora_adapters="{waiting}"'
    )
    return f"vllm:lora_requests_info{{{labels}}} 1.0\n"


def _usage(one: _Open) -> bytes:
    prompt, answer = one.request.prompt_tokens, one.request.output_tokens
    details = (
        b',"prompt_tokens_details":{"cached_tokens":%d}' % one.served.cached_tokens if one.place.publisher else b""
    )
    return (
        b'data: {"choices":[],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d%b}}\n\n'
        b"data: [DONE]\n\n" % (prompt, prompt + answer, answer, details)
    )


def simulate(config: LoadedConfig, fleet: Fleet, trace: Trace, **settings: Any) -> Outcome:
    """Return what became of the requests."""
    return Simulation(config, fleet, trace, **settings).run()
