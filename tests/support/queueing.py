# SPDX-License-Identifier: Apache-2.0
"""A director in whose front requests wait, with what operators see of them."""

import asyncio
from dataclasses import dataclass

from epp.config import Builder, assemble, load_text
from epp.framework import Endpoint, Headers, ManualClock, Parameters
from epp.framework.errors import RequestError
from epp.framework.flow_control import FairnessPolicy, SaturationDetector
from epp.framework.registry import Registry
from epp.framework.snapshot import IN_FLIGHT
from epp.routing.datastore import Datastore
from epp.routing.director import Director, Observers, PendingRequest, PoolPolicies, Routing, Runtime, Seeds, Subset
from epp.telemetry.metrics import Metrics
from epp.telemetry.request_log import request_log

BODY = b'{"model":"m","prompt":"hello"}'
SIZE = len(BODY)
OFF = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\n"
ON = (
    OFF
    + """
featureGates: [flowControl]
plugins:
- {type: concurrency-detector, parameters: {maxConcurrency: 1}}
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
  defaultRequestTTL: 10s
  noEndpointRequestTTL: 30s
  maxRequests: 200
  priorityBands: [{priority: 5, maxRequests: 4, maxBytes: 300}]
"""
)


class BrokenDetector(SaturationDetector[Parameters]):
    plugin_type = "broken-detector"

    def fullness(self, candidates):
        raise RuntimeError("broken")


class BrokenFairness(FairnessPolicy[Parameters]):
    plugin_type = "broken-fairness"

    def order(self):
        raise RuntimeError("broken")


class World:
    """A director before endpoints `a` and `b` that take one request each."""

    def __init__(self, config: str = ON) -> None:
        self.clock = ManualClock()
        self.store = Datastore(self.clock)
        self.pool("a", "b")
        self.registry = Registry()
        for cls in (BrokenDetector, BrokenFairness):
            self.registry.register(cls)
        self.metrics = Metrics("pool", self.clock)
        self.director = Director(
            Runtime(self.store, self.clock, Observers(self.metrics, *request_log(4))),
            self.assembled(config).pipeline,
            seeds=Seeds(b"test"),
        )
        self.director.use_policies(PoolPolicies({"high": 5, "low": -1}, {}))
        self.tasks: set[asyncio.Task[None]] = set()

    def assembled(self, config: str):
        return assemble(load_text(config), Builder(self.registry, self.clock))

    def pool(self, *names: str) -> None:
        self.store.replace([Endpoint(name, f"10.0.0.{ord(name) - 96}", 8000) for name in names])

    def use(self, config: str) -> None:
        self.director.use(self.assembled(config).pipeline)

    def route(self, flow: str = "f", objective: str = "", subset: Subset | None = None) -> Routing | PendingRequest:
        headers = [(":path", "/v1/completions"), ("x-request-id", "r"), ("x-llm-d-inference-fairness-id", flow)]
        if objective:
            headers.append(("x-llm-d-inference-objective", objective))
        return self.director.route(Headers(headers), BODY, subset)

    def held(self, flow: str = "f", objective: str = "", subset: Subset | None = None) -> "Asked":
        """Return a request that has to wait, and is awaited as a carrier awaits it."""
        held = self.route(flow, objective, subset)
        assert isinstance(held, PendingRequest)
        task = asyncio.create_task(held.settle())
        self.tasks.add(task)
        return Asked(held, task)

    def fill(self) -> tuple[Routing, Routing]:
        """Take up both places."""
        first, second = self.route(), self.route()
        assert isinstance(first, Routing)
        assert isinstance(second, Routing)
        return first, second

    @property
    def waiting(self) -> int:
        """Requests in queues, by the gauge of each."""
        families = {family.name: family for family in self.metrics.registry.collect()}
        return int(sum(sample.value for sample in families["llm_d_epp_flow_control_queue_size"].samples))

    def in_flight(self) -> int:
        return int(sum(self.store.snapshot().column(IN_FLIGHT)))

    def sample(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"llm_d_epp_flow_control_{name}", labels)

    def ended(self, outcome: str, priority: str = "0") -> float | None:
        return self.sample("requests_total", outcome=outcome, priority=priority, inference_pool="pool")

    def queue(self, name: str, flow: str = "f", priority: str = "0") -> float | None:
        labels = {"model_name": "m", "target_model_name": "m", "fairness_id": flow, "priority": priority}
        return self.sample(name, **labels, inference_pool="pool")


@dataclass
class Asked:
    """A held request, and the task in which a carrier awaits it."""

    held: PendingRequest
    task: asyncio.Task[None]


async def settled(*all_of_them: Asked) -> list[Routing | RequestError]:
    found: list[Routing | RequestError] = []
    for asked in all_of_them:
        await asked.task
        try:
            found.append(asked.held.routing())
        except RequestError as error:
            found.append(error)
    return found
