# SPDX-License-Identifier: Apache-2.0
"""A picker and its fleet in virtual time: the real pipeline, datastore and polls, and simulated engines.

Nothing in here waits and nothing depends on the speed of the machine: the same trace gives the same outcome.
"""

import heapq
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from epp.collectors import Tagging
from epp.collectors.polling.cadence import Cadence, slowest_interval
from epp.collectors.polling.poll import CollectorObserver, Poll
from epp.collectors.polling.reachability import Reachability
from epp.config import Assembly, Builder, LoadedConfig, assemble
from epp.datastore import Datastore
from epp.director import Cause, Director
from epp.director.routing import Routing
from epp.director.seeds import Seeds
from epp.framework import Endpoint, Headers, ManualClock
from epp.framework.cluster import ObjectReader
from epp.framework.errors import RequestError
from epp.framework.registry import Registry
from profiles.engines import MAKES, Engine, Event
from profiles.fleets import Fleet, Server
from profiles.outcome import TIMEOUT_SECONDS, Outcome, Served
from profiles.workloads import Trace

POLL_SECONDS = 0.05
PAGE_SECONDS = 0.002
"""From the writing of a page to the datastore."""
HOP_SECONDS = 0.001
"""From the picker to a server, and back."""
_PORT = 8000
_HEADERS = [(":method", "POST"), (":path", "/v1/chat/completions"), ("content-type", "application/json")]
_TOO_LONG = b'{"error":{"message":"the prompt is longer than the context","type":"BadRequestError","code":400}}'
_FIRST_PIECE = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'


@dataclass
class _Place:
    """A server in the pool."""

    server: Server
    endpoint: Endpoint
    engine: Engine
    poll: Poll
    cadence: Cadence
    page: bytes = b""
    page_at: float = -math.inf
    alarm: float = math.inf
    """When its next event is in the timetable."""


@dataclass
class _Open:
    """A request on its way."""

    number: int
    place: _Place
    routing: Routing
    served: Served
    tokens: int
    prompt_tokens: int


class Simulation:
    """One fleet, one configuration and one trace."""

    def __init__(
        self,
        config: LoadedConfig,
        fleet: Fleet,
        trace: Trace,
        *,
        refresh_seconds: float = 0.0,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self._clock = ManualClock(1000.0)
        self._start = self._clock.now()
        self._trace = trace
        self._refresh_seconds = refresh_seconds
        self._headers = headers
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = count()
        self.assembly: Assembly = assemble(config, Builder(Registry(), self._clock))
        self.store = Datastore(self._clock)
        _read_objects(self.assembly, fleet.objects)
        self.director = Director(self.store, self.assembly.pipeline, self._clock, seeds=Seeds(b"profiles"))
        Tagging(self.store, self.assembly.taggers)
        endpoints = [_endpoint(server, f"10.0.0.{number}") for number, server in enumerate(fleet.servers, 1)]
        self.store.update(endpoints)
        self.places = [
            self._place(server, endpoint, MAKES[fleet.make].engine(server.profile))
            for server, endpoint in zip(fleet.servers, endpoints, strict=True)
        ]
        self._by_id = {place.endpoint.id: place for place in self.places}
        self._open: dict[int, _Open] = {}
        self._served: list[Served] = []

    def _place(self, server: Server, endpoint: Endpoint, engine: Engine) -> _Place:
        (feed,) = self.assembly.feeds
        poll = Poll(
            self.store,
            feed,
            Reachability(self.store, endpoint),
            clock=self._clock,
            interval_seconds=POLL_SECONDS,
            observer=CollectorObserver(),
        )
        cadence = Cadence(POLL_SECONDS, slowest_interval(POLL_SECONDS, math.inf), self._clock.now())
        return _Place(server, endpoint, engine, poll, cadence)

    def run(self) -> Outcome:
        """Send all requests of the trace and wait for the last answer."""
        for number, place in enumerate(self.places):
            place.engine.advance(self._start)
            self._at(POLL_SECONDS * number / len(self.places), self._fetch, place)
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

    def _fetch(self, place: _Place) -> None:
        if self._now - place.page_at >= self._refresh_seconds:
            self._advance(place)
            place.page, place.page_at = _page(place), self._now
        self._at(self._now + PAGE_SECONDS + place.server.network_seconds, self._report, place, place.page)

    def _report(self, place: _Place, page: bytes) -> None:
        wait = place.poll.settle(place.endpoint, page)
        now = self._clock.now()
        if place.poll.changed or self.store.in_flight(place.endpoint.id):
            place.cadence.event(now)
        self._at(self._now - PAGE_SECONDS + max(wait, place.cadence.interval(now)), self._fetch, place)

    # Requests

    def _arrive(self, number: int) -> None:
        call = self._trace.calls[number]
        headers = Headers([*_HEADERS, ("x-request-id", f"r{number}"), *self._headers])
        served = Served(at=call.at, group=call.group)
        self._served.append(served)
        try:
            routing = self.director.route(headers, call.body, None)
        except RequestError:
            served.refused = True
            return
        assert isinstance(routing, Routing)
        place = self._by_id[routing.result.targets[0].id]
        served.server = place.server.name
        plan = self._trace.plan(number, place.server.profile.block_size).request
        one = _Open(number, place, routing, served, plan.output_tokens, plan.prompt_tokens)
        self._open[number] = one
        self._at(self._now + HOP_SECONDS + place.server.network_seconds, self._submit, one)
        self._at(self._now + TIMEOUT_SECONDS * self._trace.slowness, self._give_up, one)

    def _submit(self, one: _Open) -> None:
        plan = self._trace.plan(one.number, one.place.server.profile.block_size).request
        if plan.prompt_tokens + plan.output_tokens > one.place.server.profile.max_model_len:
            self._too_long(one)
            return
        self._advance(one.place)
        one.place.engine.submit(msgspec.structs.replace(plan, request_id=one.number))
        self._set_alarm(one.place)

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
            self._advance(one.place)
            one.place.engine.abort(one.number)
            self._set_alarm(one.place)
            one.routing.complete(Cause.CLIENT_DISCONNECT)

    def _tick(self, place: _Place, due: float) -> None:
        if place.alarm == due:
            place.alarm = math.inf
            self._advance(place)
            self._set_alarm(place)

    def _advance(self, place: _Place) -> None:
        for event in place.engine.advance(self._clock.now()):
            back = HOP_SECONDS + place.server.network_seconds
            self._at(event.at - self._start + back, self._answered, event)

    def _set_alarm(self, place: _Place) -> None:
        due = place.engine.next_event_at
        if due is None:
            place.alarm = math.inf
        elif due != place.alarm:
            place.alarm = due
            self._at(due - self._start, self._tick, place, due)

    def _answered(self, event: Event) -> None:
        one = self._open.get(event.request_id)
        if one is None:
            return
        routing, now = one.routing, self._clock.now
        if one.served.ttft is None:
            one.served.ttft = self._now - one.served.at - 1.0
            routing.served_by(one.place.endpoint.hostport)
            routing.response_started(200, Headers, event_stream=True)
            routing.response_piece(_FIRST_PIECE, last=False, now=now)
        if event.ended:
            del self._open[event.request_id]
            one.served.tpot = (self._now - 1.0 - one.served.at - one.served.ttft) / max(1, one.tokens - 1)
            routing.response_piece(_usage(one), last=True, now=now)
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


def _endpoint(server: Server, address: str) -> Endpoint:
    return Endpoint(
        server.name,
        address,
        _PORT,
        labels=server.labels,
        node=server.node,
        cluster=server.cluster,
        accelerator=server.declared,
    )


def _read_objects(assembly: Assembly, objects: str) -> None:
    """Have the plugins read objects of the cluster, as with `--objects`."""
    if not objects:
        return
    with tempfile.TemporaryDirectory(prefix="epp-bench-") as directory:
        path = Path(directory) / "objects.yaml"
        path.write_text(objects)
        for plugin in assembly.plugins:
            if isinstance(plugin, ObjectReader):
                plugin.read_files([str(path)])


def _usage(one: _Open) -> bytes:
    return (
        b'data: {"choices":[],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}}\n\n'
        b"data: [DONE]\n\n" % (one.prompt_tokens, one.prompt_tokens + one.tokens, one.tokens)
    )


def simulate(config: LoadedConfig, fleet: Fleet, trace: Trace, **settings: Any) -> Outcome:
    """Return what became of the requests."""
    return Simulation(config, fleet, trace, **settings).run()
