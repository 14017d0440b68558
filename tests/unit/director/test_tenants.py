# SPDX-License-Identifier: Apache-2.0
"""What the tenant of a request, by its API key, means for its flow and its priority, and for all that compares them."""

import asyncio
import contextlib
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import Endpoint, Headers, Parameters, Request, RequestHeaders
from epp.framework.errors import AdmissionDeniedError, UnknownApiKeyError
from epp.framework.flow_control import EvictionFilter
from epp.framework.quotas import Tenant
from epp.framework.refusals import EvictedError, NoEndpointsError, QueueFullError, SheddableDroppedError
from epp.pool.collectors.tagging import Tagging
from epp.routing.director import PendingRequest, PoolPolicies, Routing
from epp.routing.director.pipeline import assign_priority
from tests.unit.director.world import ENDPOINTS
from tests.unit.director.world import World as DirectorWorld

FAIRNESS, OBJECTIVE = "x-llm-d-inference-fairness-id", "x-llm-d-inference-objective"
CLASSES = ("low", "medium", "high", "critical")


def key_of(tenant: str) -> str:
    return f"sk-{tenant}"


def tenants(*, names: tuple[str, ...] = CLASSES, more: str = "", parameters: str = "") -> str:
    """An entry of `plugins` with a tenant for each quality of service, who has a key."""
    digests = {name: hashlib.sha256(key_of(name).encode()).hexdigest() for name in names}
    entries = [f"{{name: {name}, qos: {name}, apiKeys: ['sha256:{digest}']{more}}}" for name, digest in digests.items()]
    return f"{{type: tenants, parameters: {{tenants: [{', '.join(entries)}]{parameters}}}}}"


class World(DirectorWorld):
    """A director before one endpoint."""

    def __init__(self, *plugins: str, **options) -> None:
        policies = PoolPolicies(priorities={"batch": -5, "chat": 50, "urgent": 1000})
        more = [SeesPriority, Everyone]
        super().__init__(*plugins, endpoints=ENDPOINTS[:1], policies=policies, more=more, **options)

    def send(self, tenant: str = "", **headers: str) -> Routing | PendingRequest:
        fields = [(":path", "/v1/completions"), *((name.replace("_", "-"), value) for name, value in headers.items())]
        if tenant:
            fields.append(("authorization", f"Bearer {key_of(tenant)}"))
        return self.route(headers=Headers(fields))

    def routed(self, tenant: str = "", **headers: str) -> Routing:
        routing = self.send(tenant, **headers)
        assert isinstance(routing, Routing)
        return routing

    def request(self, tenant: str = "", **headers: str) -> Request:
        return self.routed(tenant, **headers).request


def test_tenant_of_the_key_is_the_flow_whatever_the_client_calls_itself():
    world = World(tenants())
    request = world.request("low", **{FAIRNESS: "critical"})
    assert (request.fairness_id, request.priority) == ("low", -1)
    assert world.request("", **{FAIRNESS: "critical"}).fairness_id == "default-flow"
    assert world.request("", **{FAIRNESS: "own"}).fairness_id == "own"


def test_without_the_plugin_the_header_says_the_flow():
    request = World().request("low", **{FAIRNESS: "own"})
    assert (request.fairness_id, request.priority) == ("own", 0)


def test_plugin_that_writes_what_tenants_read_runs_before_them_wherever_it_is_declared():
    by_id = "{type: tenants, parameters: {tenants: [{name: a, fairnessIds: [session], priority: 3}]}}"
    request = World(by_id, "{type: agent-identity}").request(x_session_affinity="session")
    assert (request.fairness_id, request.priority) == ("a", 3)


@pytest.mark.parametrize(
    ("objective", "expected"), [(None, 10), ("unheard-of", 10), ("", 10), ("batch", -5), ("chat", 50), ("urgent", 60)]
)
def test_objective_counts_before_the_tenant_and_up_to_the_highest_priority_of_the_tenant(objective, expected):
    world = World(tenants(names=("high",), more=", highestPriority: 60"))
    request = world.request("high", **({} if objective is None else {OBJECTIVE: objective}))
    assert request.priority == expected


@given(
    priority=st.integers(-200, 200),
    objective=st.booleans(),
    given_priority=st.none() | st.integers(-200, 200),
    highest=st.none() | st.integers(-200, 200),
)
def test_no_request_has_more_than_the_highest_priority_of_its_tenant(priority, objective, given_priority, highest):
    request = Request("r", priority=priority if objective else 0, objective="o" if objective else "")
    assign_priority(request, Tenant(name="t", priority=given_priority, highest_priority=highest))
    wanted = priority if objective else given_priority or 0
    assert request.priority == (wanted if highest is None else min(wanted, highest))
    assert request.fairness_id == "t"


class SeesPriority(RequestHeaders):
    plugin_type = "sees-priority"

    def setup(self) -> None:
        self.seen: list[int] = []

    def request_headers(self, request: Request) -> None:
        self.seen.append(request.priority)


@pytest.mark.parametrize("first", [True, False])
def test_other_plugins_of_that_stage_see_the_priority_of_the_objective_in_any_order(first):
    plugins = ["{type: sees-priority}", tenants(names=("high",))]
    world = World(*(plugins if first else reversed(plugins)))
    assert world.request("high", **{OBJECTIVE: "chat"}).priority == 50
    assert world.plugin("sees-priority").seen == [50]


def test_refusal_of_an_unknown_key_is_the_answer_and_is_recorded():
    world = World(tenants(parameters=", unknown: Refuse"))
    with pytest.raises(UnknownApiKeyError):
        world.send("nobody")
    (refusal,) = world.events.refusals
    assert (refusal.error.status, refusal.model) == (401, "m")
    assert key_of("nobody") not in str(refusal.error)


def test_tf_13_only_the_low_class_is_shed_where_no_flow_control_is():
    world = World(tenants())
    world.report(0, waiting=5)
    with pytest.raises(SheddableDroppedError):
        world.send("low")
    assert [world.request(name).priority for name in CLASSES[1:]] == [0, 10, 100]


def test_probabilistic_admitter_sees_the_priority_of_the_key():
    world = World(tenants(), "{type: probabilistic-admitter, parameters: {k: 1000000}}")
    world.report(0, waiting=2.5)  # half of what is too much for all of negative priority
    for name in CLASSES[1:]:
        world.request(name)
    with pytest.raises(AdmissionDeniedError):
        world.send("low")


PREFERENCES = """
{type: preference-order-scorer, parameters: {exclusive: true, preferenceOrder: [
  {class: h100, conditions: [{priority: '>=100'}]}, {class: t4, conditions: [{priority: '<100'}]}]}}
"""


def test_conditions_on_requests_see_the_priority_of_the_key():
    profile = "schedulingProfiles: [{name: default, plugins: [{pluginRef: preference-order-scorer}]}]"
    world = World(tenants(), "{type: accelerator-data-source}", PREFERENCES, rest=profile)
    labels = {"h100": "NVIDIA-H100-80GB-HBM3", "t4": "Tesla-T4"}
    Tagging(world.store, world.assembly.taggers)
    world.store.replace(
        Endpoint(name, f"10.0.0.{number}", 8000, labels={"nvidia.com/gpu.product": product})
        for number, (name, product) in enumerate(labels.items(), 1)
    )
    assert [world.routed(name).served.name for name in CLASSES] == ["t4", "t4", "t4", "h100"]


def test_refusal_carries_the_tenant():
    world = World(tenants())
    world.store.replace([])
    with pytest.raises(NoEndpointsError):
        world.send("high")
    (refusal,) = world.events.refusals
    assert refusal.request is not None
    assert (refusal.request.fairness_id, refusal.request.priority) == ("high", 10)


FLOW_CONTROL = """
featureGates: [flowControl]
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
  defaultRequestTTL: 0s
  maxRequests: 3
"""
ONE_PLACE = "{type: concurrency-detector, parameters: {maxConcurrency: 1}}"


class Line:
    """Requests of tenants in front of an endpoint that is busy; three of them can wait."""

    def __init__(self) -> None:
        self.world = World(tenants(), ONE_PLACE, rest=FLOW_CONTROL)
        self.world.send("critical")
        self._waiting: list[tuple[str, PendingRequest, asyncio.Task[None]]] = []

    @property
    def waiting(self) -> list[str]:
        return [tenant for tenant, _, _ in self._waiting]

    async def came(self, tenant: str) -> tuple[bool, list[str]]:
        """Send a request; return whether it waits, and whose requests were refused for it."""
        held = None
        with contextlib.suppress(QueueFullError):
            held = self.world.send(tenant)
        if held is not None:
            assert isinstance(held, PendingRequest)
            self._waiting.append((tenant, held, asyncio.create_task(held.settle())))
        for _ in range(5):
            await asyncio.sleep(0)
        gone = [each for each in self._waiting if each[2].done()]
        self._waiting = [each for each in self._waiting if not each[2].done()]
        for _, refused, _ in gone:
            with pytest.raises(EvictedError):
                refused.routing()
        return held is not None, [tenant for tenant, *_ in gone]

    async def end(self) -> None:
        for _, _, task in self._waiting:
            task.cancel()
        await asyncio.gather(*(task for _, _, task in self._waiting), return_exceptions=True)


async def go_through(names: list[str]) -> None:
    line = Line()
    for name in names:
        before = line.waiting
        waits, refused = await line.came(name)
        rank = CLASSES.index(name)
        assert all(CLASSES.index(each) < rank for each in refused)
        assert "critical" not in refused
        if waits:
            assert len(line.waiting) <= 3
        else:
            assert line.waiting == before
            assert len(before) == 3
            assert all(CLASSES.index(each) >= rank for each in before)
    await line.end()


@given(names=st.lists(st.sampled_from(CLASSES), max_size=12))
def test_tf_13_queue_pressure_refuses_no_class_for_the_same_or_a_lower_one(names):
    asyncio.run(go_through(names))


class Everyone(EvictionFilter[Parameters]):
    """Lets any request under way be ended."""

    plugin_type = "everyone"

    def evictable(self, request: Request) -> bool:
        return True


@pytest.mark.parametrize("newcomer", CLASSES)
@pytest.mark.parametrize("busy", CLASSES)
async def test_tf_13_request_under_way_is_ended_only_for_a_higher_class(busy, newcomer):
    world = World(tenants(), ONE_PLACE, "{type: everyone}", rest=FLOW_CONTROL + "  enableEviction: true\n")
    ended: list[str] = []
    world.routed(busy).let_evict(lambda: ended.append(busy))
    held = world.send(newcomer)
    assert isinstance(held, PendingRequest)
    task = asyncio.create_task(held.settle())
    await asyncio.sleep(0)
    assert ended == ([busy] if CLASSES.index(newcomer) > CLASSES.index(busy) else [])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_flow_control_has_the_band_of_the_key_and_the_queue_of_its_tenant():
    bands = "  priorityBands: [{priority: 10, maxRequests: 1}]\n"
    world = World(tenants(names=("high", "critical")), ONE_PLACE, rest=FLOW_CONTROL + bands)
    world.send("critical")
    held = [world.send("high", **{FAIRNESS: "anybody"}), world.send("critical", **{FAIRNESS: "anybody"})]
    tasks = [asyncio.create_task(each.settle()) for each in held if isinstance(each, PendingRequest)]
    assert len(tasks) == 2
    with pytest.raises(QueueFullError):  # the band of priority 10 takes one
        world.send("high")
    flow = world.director.flow
    assert flow is not None
    assert {(waiting.flow, waiting.priority) for waiting in flow.queues} == {("high", 10), ("critical", 100)}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
