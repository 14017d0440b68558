# SPDX-License-Identifier: Apache-2.0
"""Subscriptions to the KV events of the endpoints of a pool: addresses, metrics, and caches in doubt."""

import asyncio
import math
import re
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Annotated, Any, Literal

import numpy as np
import structlog
from msgspec import Meta
from numpy.typing import NDArray

from epp.framework import Count, Endpoint, Parameters
from epp.framework.endpoint import Identity
from epp.framework.plugin_status import MOST_ENDPOINTS, IgnoredValue, InputProblem, PluginMetric, Sample
from epp.pool.discovery.pods import KV_PORTS
from epp.pool.kv_events.central import Sender
from epp.pool.kv_events.holders import Lane
from epp.pool.kv_events.order import EngineCounts, EventCounts, Received
from epp.pool.kv_events.sockets import CurveParameters
from epp.pool.kv_events.subscriber import (
    MOST_WAITING_MESSAGES,
    Addresses,
    EventSources,
    Ports,
    Subscriber,
    labelled_ports,
    rank_of,
)

_LISTENING = re.compile(r"tcp://(?:\*|[\w.-]+|\[[\da-fA-F:.]+\]):(\d{1,5})")
_LAST_PORT = 65_535
_ASKED_AT_A_TIME = 8
_ASKING_PAUSE_SECONDS = 0.2
_ASK_AGAIN_SECONDS = 30.0
_log = structlog.get_logger()


class PodDiscovery(Parameters, frozen=True):
    """Sockets of engines."""

    socket_port: Annotated[int, Meta(ge=1, le=65535)] = 5557
    """Port of the events of the first rank; the port of rank i is higher by i. The label or annotation
    `llm-d.ai/kv-events-port` of a pod replaces it."""
    replay_socket_port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """Port on which the first rank repeats events, for example after a gap; the port of rank i is higher by i. With 0,
    gaps are not repaired. The label or annotation `llm-d.ai/kv-replay-port` of a pod replaces it."""
    ask_endpoints: bool = False
    """Request the ports of events from each endpoint at `/kv_event_sources`, which vLLM has since 0.32: before
    subscribing to it, and every 30 seconds while it is not connected. Without an answer, the ports above are used."""
    pod_label_selector: str = ""
    """Without effect: the endpoints of the pool are used."""
    pod_namespace: str = ""
    """Without effect."""


class KvEvents(Parameters, frozen=True):
    """Subscriptions to KV events."""

    topic_filter: str = "kv@"
    """Beginning of the topics subscribed to."""
    concurrency: Count = 4
    """Without effect: one thread receives the events."""
    engine_type: Literal["vllm", "sglang"] = "vllm"
    """Engine; the formats of both are read."""
    discover_pods: bool = True
    """Subscribe to each endpoint of the pool."""
    pod_discovery_config: PodDiscovery = PodDiscovery()
    """Ports of the engines."""
    zmq_endpoint: str = ""
    """Address on which the picker listens for engines that connect to it, such as `tcp://*:5557`; empty for none. The
    second part of a topic, `kv@<address:port or pod>@<model>`, names the endpoint. For pods with several endpoints, the
    picker also listens on the next ports: data-parallel rank i of vLLM connects to the port that is higher by i."""
    curve: CurveParameters | None = None
    """Encryption of the connections to engines, also for replays; none by default. Not a parameter of llm-d-router."""

    def __post_init__(self) -> None:
        if self.curve is not None and self.zmq_endpoint:
            raise ValueError("curve does not encrypt connections to zmqEndpoint; leave one of them out")
        port = _LISTENING.fullmatch(self.zmq_endpoint)
        if self.zmq_endpoint and not (port and 0 < int(port[1]) <= _LAST_PORT):
            raise ValueError(f"zmqEndpoint {self.zmq_endpoint!r} is not an address to listen on; write tcp://*:5557")


_POD = "pod_identifier"
_SUBSCRIBERS = PluginMetric("kv_cache_events_active_subscribers", "Endpoints whose events are received.")
_MESSAGES = PluginMetric("kv_cache_events_messages_received", "Messages with events.", (_POD,), is_counter=True)
_RECONNECTIONS = PluginMetric(
    "kv_cache_events_subscriber_reconnections", "Connections after the first one.", (_POD,), is_counter=True
)
_ERRORS = PluginMetric(
    "kv_cache_events_zmq_errors", "Failed operations on sockets, and replays.", (_POD, "operation"), is_counter=True
)
_QUEUED = PluginMetric("kv_cache_events_pool_queue_depth", "Messages that are received and not applied yet.")
_CAPACITY = PluginMetric("kv_cache_events_pool_capacity", "Largest number of messages that wait to be applied.")
_RESETS = PluginMetric(
    "kv_cache_events_resets",
    "Events after which the cache of an endpoint counted as empty, or as uncertain (after a gap), by cause.",
    ("cause",),
    is_counter=True,
)
_REPLAYS = PluginMetric("kv_cache_events_replays", "Replays of missing messages.", ("result",), is_counter=True)
_UNKNOWN = PluginMetric(
    "kv_cache_events_unknown_senders", "Messages of connected engines that are not in the pool.", is_counter=True
)
EVENT_METRICS = (
    _SUBSCRIBERS, _MESSAGES, _RECONNECTIONS, _ERRORS, _QUEUED, _CAPACITY, _RESETS, _REPLAYS, _UNKNOWN,
)  # fmt: skip


@dataclass(slots=True)
class _Engine:
    """The subscription of one endpoint."""

    number: int
    """Number that, unlike lanes, is used once, so that late messages of an endpoint that left are ignored."""
    lane: Lane
    endpoint: Endpoint
    ports: Ports
    counts: EngineCounts = field(default_factory=EngineCounts)
    asked: float = -math.inf
    """Time of the last request for its ports."""
    invalid_label: str = ""
    """Reason that the ports in its labels are not used; empty for no reason."""

    @property
    def addresses(self) -> Addresses:
        return self.ports.addresses_at(self.endpoint)


class Subscriptions:
    """Subscribes to the endpoints of a pool, each under a number, between `start` and `close`."""

    def __init__(self, parameters: KvEvents) -> None:
        self._parameters = parameters
        self._curve = None if parameters.curve is None else parameters.curve.keys()
        self._asks = parameters.discover_pods and parameters.pod_discovery_config.ask_endpoints
        self._numbers = count()
        self._engines: dict[int, _Engine] = {}
        self._by_identity: dict[Identity, _Engine] = {}
        self._counts = EventCounts()
        self._subscriber: Subscriber | None = None
        self._doubted = np.zeros(0, dtype=bool)
        """Whether messages are missing that the engine was asked to repeat, by lane."""

    def add(self, endpoint: Endpoint, lane: Lane) -> None:
        """Subscribe to an endpoint with this lane."""
        engine = _Engine(next(self._numbers), lane, endpoint, Ports(0))
        self._configure(engine)
        self._engines[engine.number] = self._by_identity[endpoint.identity] = engine
        self._doubted = np.append(self._doubted, np.zeros(max(0, lane.id + 1 - len(self._doubted)), dtype=bool))
        self._connect(engine)

    def update(self, endpoint: Endpoint) -> None:
        """Subscribe to an endpoint again if its ports in labels have changed."""
        engine = self._by_identity[endpoint.identity]
        before, engine.endpoint = engine.endpoint, endpoint
        if any(endpoint.labels.get(label) != before.labels.get(label) for label in KV_PORTS):
            self._configure(engine)
            self._connect(engine)

    def remove(self, endpoint: Endpoint) -> None:
        engine = self._by_identity.pop(endpoint.identity)
        self.doubt(engine.number, is_doubted=False)
        del self._engines[engine.number]
        if self._subscriber is not None:
            self._subscriber.disconnect(engine.number)

    def start(self, apply: Callable[[Sequence[Received]], Coroutine[Any, Any, None]]) -> None:
        listen = self._parameters.zmq_endpoint
        if listen or self._parameters.discover_pods:
            self._subscriber = Subscriber(
                self._parameters.topic_filter, apply, self._counts, listen=listen, curve=self._curve
            )
            for engine in self._engines.values():
                self._connect(engine)

    async def ask(self) -> None:
        """Request the ports of events from endpoints until cancelled, from some at a time."""
        source = EventSources()
        while self._asks:
            due = asyncio.get_running_loop().time() - _ASK_AGAIN_SECONDS
            waiting = (each for each in self._engines.values() if each.asked < due and not each.counts.is_connected)
            await asyncio.gather(*(self._ask(engine, source) for engine in islice(waiting, _ASKED_AT_A_TIME)))
            await asyncio.sleep(_ASKING_PAUSE_SECONDS)

    async def _ask(self, engine: _Engine, source: EventSources) -> None:
        found = await source.ports_of(engine.endpoint)
        is_first, engine.asked = engine.asked == -math.inf, asyncio.get_running_loop().time()
        if isinstance(found, str):
            if is_first:
                text = "ports of KV events are those of the configuration"
                _log.info(text, endpoint=engine.endpoint.id, reason=found)
            found = engine.ports
        if engine.number in self._engines and (is_first or found != engine.ports):
            engine.ports = found
            self._connect(engine)

    async def close(self) -> None:
        subscriber, self._subscriber = self._subscriber, None
        self._doubted[:] = False
        for engine in self._engines.values():
            engine.counts.is_connected = False
        if subscriber is not None:
            await subscriber.close()

    def lane_of(self, engine: int) -> Lane | None:
        """Return the lane of an endpoint; None if it left."""
        found = self._engines.get(engine)
        return None if found is None else found.lane

    def current(self, lanes: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the lanes, by id, with -1 in place of those whose contents are in doubt."""
        if not self._doubted.any():
            return lanes
        return np.where((lanes >= 0) & self._doubted[lanes], -1, lanes)

    def doubt(self, engine: int, *, is_doubted: bool = True) -> None:
        """Mark the contents of a cache as in doubt, so that they are not used, or as certain again."""
        if (lane := self.lane_of(engine)) is not None:
            self._doubted[lane.id] = is_doubted

    def is_doubted(self, engine: int) -> bool:
        lane = self.lane_of(engine)
        return lane is not None and bool(self._doubted[lane.id])

    def addresses(self, lanes: Collection[int]) -> list[str]:
        """Return the addresses of the events of these lanes, by id, in order."""
        return sorted(each.addresses.events for each in tuple(self._engines.values()) if each.lane.id in lanes)

    @property
    def samples(self) -> Iterator[Sample]:
        subscriber, engines = self._subscriber, tuple(self._engines.values())
        yield Sample(_SUBSCRIBERS, sum(each.counts.is_connected for each in engines))
        yield Sample(_QUEUED, 0 if subscriber is None else subscriber.waiting)
        yield Sample(_CAPACITY, MOST_WAITING_MESSAGES)
        yield Sample(_UNKNOWN, self._counts.unknown_senders)
        for cause, number in self._counts.resets.items():
            yield Sample(_RESETS, number, (cause,))
        for result, number in self._counts.replays.items():
            yield Sample(_REPLAYS, number, (result,))
        for name, counts in ((each.endpoint.id, each.counts) for each in engines):
            yield Sample(_MESSAGES, counts.messages, (name,))
            yield Sample(_RECONNECTIONS, max(0, counts.connections - 1), (name,))
            for operation, number in tuple(counts.errors.items()):
                yield Sample(_ERRORS, number, (name, operation))

    @property
    def state(self) -> Mapping[str, object]:
        """Addresses of events, and number of caches in doubt."""
        addresses = sorted(engine.addresses.events for engine in self._engines.values())
        return {"subscriptions": addresses[:MOST_ENDPOINTS], "cachesInDoubt": int(self._doubted.sum())}

    def _connect(self, engine: _Engine) -> None:
        if self._subscriber is None:
            return
        if self._parameters.discover_pods and (not self._asks or engine.asked > -math.inf):
            self._subscriber.connect(engine.number, engine.addresses, engine.counts)
        if self._parameters.zmq_endpoint:
            endpoint = engine.endpoint
            names = frozenset((endpoint.hostport, endpoint.name, endpoint.name.removesuffix("-rank-0"), endpoint.id))
            rank, replay = rank_of(endpoint), engine.addresses.replay
            pod = endpoint.id.removesuffix(f"-rank-{rank}")
            sender = Sender(engine.number, names, endpoint.address, engine.counts, pod, rank, replay)
            self._subscriber.admit(sender)

    @property
    def problems(self) -> tuple[InputProblem, ...]:
        central = None if self._subscriber is None else self._subscriber.central
        if central is None or not central.problem:
            return ()
        return (InputProblem(self._parameters.zmq_endpoint, "zmqEndpoint", central.problem),)

    @property
    def ignored(self) -> tuple[IgnoredValue, ...]:
        """Labels of endpoints that are not valid ports."""
        found = ((each.endpoint.id, each.invalid_label) for each in self._engines.values() if each.invalid_label)
        return tuple(IgnoredValue("labels", "endpoint", name, reason) for name, reason in islice(found, MOST_ENDPOINTS))

    def _configure(self, engine: _Engine) -> None:
        """Set the ports from labels or the configuration, until the engine is asked for them."""
        given, rank = self._parameters.pod_discovery_config, rank_of(engine.endpoint)
        engine.ports = Ports(given.socket_port + rank, given.replay_socket_port and given.replay_socket_port + rank)
        engine.asked, engine.invalid_label = -math.inf, ""
        try:
            engine.ports = labelled_ports(engine.endpoint, engine.ports)
        except ValueError as error:
            engine.invalid_label = str(error)
