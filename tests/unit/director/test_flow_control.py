# SPDX-License-Identifier: Apache-2.0
"""Requests that wait for room, from their arrival to every end that they can have; with what operators see of them."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator

import pytest
import structlog

from epp.admission.flow_control.settings import QueuedRequest
from epp.framework import Endpoint
from epp.framework.datalayer import Report
from epp.framework.refusals import (
    NoEndpointsError,
    QueueFullError,
    QueueTimeoutError,
    QueueTimeoutNoEndpointsError,
    ShuttingDownError,
)
from epp.framework.snapshot import KV_USAGE, WAITING
from epp.routing.director import Cause, PendingRequest, Routing, Subset
from epp.telemetry.request_log import request_as_text
from tests.support.queueing import OFF, ON, SIZE, World, settled
from tests.support.waiting import until

UTILIZATION = f"""{OFF}
featureGates: [flowControl]
plugins: [{{type: utilization-detector, name: mine, parameters: {{metricsStalenessThreshold: 3s}}}}]
flowControl: {{saturationDetector: {{pluginRef: mine}}}}
"""


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    for task in world.tasks:
        task.cancel()
    await asyncio.gather(*world.tasks, return_exceptions=True)


def log_of(lines: list) -> list:
    return [line for line in lines if line["event"] == "request"]


async def test_request_waits_and_goes_when_another_has_ended_and_operators_see_how_long(world):
    first, _ = world.fill()
    with structlog.testing.capture_logs() as lines:
        held = world.held()
        assert world.queue("queue_size") == 1
        assert world.queue("queue_bytes") == SIZE
        world.clock.advance(2.5)
        first.complete(Cause.NATURAL)
        (routing,) = await settled(held)
        assert isinstance(routing, Routing)
        assert routing.decision.why().endswith("queued 2.500 s")
        world.clock.advance(1.0)
        routing.complete(Cause.NATURAL)
    assert world.queue("queue_size") == 0
    assert world.queue("queue_bytes") == 0
    assert world.ended("Dispatched") == 3
    line = log_of(lines)[-1]
    assert (line["queue_seconds"], line["queue_outcome"], line["duration_seconds"] >= 3.5) == (2.5, "Dispatched", True)
    assert "queued 2.500s" in request_as_text(None, "info", line)["event"]
    steps = [line["event"] for line in lines]
    assert steps.index("queued") < steps.index("destination") < steps.index("flow control")
    labels = {"model_name": "m", "target_model_name": "m", "fairness_id": "f", "priority": "0"}
    of_queue = {**labels, "outcome": "Dispatched", "inference_pool": "pool"}
    assert world.sample("request_queue_duration_seconds_count", **of_queue) == 3
    assert world.sample("request_queue_duration_seconds_sum", **of_queue) == 2.5
    entering = {"fairness_id": "f", "priority": "0", "outcome": "NotYetFinalized"}
    assert world.sample("request_enqueue_duration_seconds_count", **entering) == 1
    assert world.sample("dispatch_cycle_duration_seconds_count") >= 2


async def test_request_that_need_not_wait_has_no_time_in_a_queue_in_its_line(world):
    with structlog.testing.capture_logs() as lines:
        world.fill()[0].complete(Cause.NATURAL)
    (line,) = log_of(lines)
    assert (line["queue_seconds"], line["queue_outcome"]) == (None, None)
    assert "queued" not in line["why"]


async def test_gauges_say_how_full_pool_and_queues_are(world):
    world.metrics.refresh_pool(world.store.snapshot(), world.director.flow)
    assert world.sample("pool_saturation", inference_pool="pool", stage="effective") == 0.0
    world.fill()
    for _ in range(3):
        world.held(objective="high")
    world.held(objective="low")
    world.metrics.refresh_pool(world.store.snapshot(), world.director.flow)
    assert world.sample("pool_saturation", inference_pool="pool", stage="effective") == 1.0
    of_band = {"priority": "5", "inference_pool": "pool"}
    assert world.sample("capacity_utilization_requests", **of_band) == 3 / 4
    assert world.sample("capacity_utilization_bytes", **of_band) == 3 * SIZE / 300
    assert world.sample("capacity_utilization_requests", priority="-1", inference_pool="pool") == 1 / 5000
    assert world.sample("global_capacity_utilization_requests", inference_pool="pool") == 4 / 200
    assert world.sample("global_capacity_utilization_bytes", inference_pool="pool") is None  # without a limit
    world.use(OFF)
    world.metrics.refresh_pool(world.store.snapshot(), world.director.flow)
    assert world.sample("pool_saturation", inference_pool="pool", stage="effective") is None


async def test_gauges_say_how_full_each_stage_is(world):
    def saturations() -> list[float | None]:
        world.metrics.refresh_pool(world.store.snapshot(), world.director.flow)
        stages = ("prefill", "decode", "effective")
        return [world.sample("pool_saturation", inference_pool="pool", stage=stage) for stage in stages]

    world.store.replace(
        Endpoint(name, f"10.0.0.{number}", 8000, labels={"llm-d.ai/role": role})
        for number, (name, role) in enumerate((("a", "prefill"), ("b", "decode")), 1)
    )
    assert isinstance(world.route(subset=Subset.parse(["10.0.0.1:8000"])), Routing)
    assert saturations() == [1.0, 0.0, 1.0]
    world.pool("a", "b")  # without roles
    assert saturations() == [None, 0.5, 0.5]


async def test_gauge_tells_endpoints_with_old_metrics_from_busy_ones(world):
    def stale(detector: str) -> float | None:
        world.metrics.refresh_pool(world.store.snapshot(), world.director.flow)
        return world.sample("stale_endpoints", detector=detector)

    assert stale("concurrency-detector") is None  # which needs no metrics
    world.use(UTILIZATION)
    assert stale("mine") == 2  # of which none has reported
    for endpoint in list(world.store.endpoints):
        world.store.report(endpoint, Report({WAITING: 0.0, KV_USAGE: 0.0}))
        world.clock.advance(1.5)
    assert stale("mine") == 0
    world.clock.advance(1.0)  # 2.5 s and 4 s old
    assert stale("mine") == 1
    world.use(OFF)
    assert stale("mine") is None


async def test_flows_and_priorities_that_clients_invent_have_few_series(world):
    world.fill()
    for number in range(150):
        world.held(f"flow-{number}")
    names = {
        sample.labels["fairness_id"]
        for family in world.metrics.registry.collect()
        if family.name.startswith("llm_d_epp_flow_control")
        for sample in family.samples
        if "fairness_id" in sample.labels
    }
    assert "other" in names
    assert len(names) <= 20
    assert world.waiting == 150


async def test_full_queue_refuses_and_counts(world):
    world.fill()
    for _ in range(4):
        world.held(objective="high")
    with structlog.testing.capture_logs() as lines, pytest.raises(QueueFullError):
        world.route(objective="high")
    (line,) = log_of(lines)
    assert (line["status"], line["queue_seconds"], line["queue_outcome"]) == (429, None, None)
    assert world.ended("RejectedCapacity", "5") == 1
    assert world.queue("queue_size", priority="5") == 4


async def test_request_that_waits_too_long_is_refused_and_its_line_says_so(world):
    world.fill()
    held = world.held()
    with structlog.testing.capture_logs() as lines:
        world.clock.advance(10.0)
        (error,) = await settled(held)
    assert isinstance(error, QueueTimeoutError)
    (line,) = log_of(lines)
    found = (line["queue_seconds"], line["queue_outcome"], line["reason"])
    assert found == (10.0, "EvictedTTL", "rejected-ttl-expired")
    assert world.ended("EvictedTTL") == 1


async def test_client_that_leaves_is_out_at_once(world):
    world.fill()
    gone, stays = world.held(), world.held()
    await asyncio.sleep(0)
    with structlog.testing.capture_logs() as lines:
        gone.task.cancel()
        await asyncio.gather(gone.task, return_exceptions=True)
    assert world.waiting == 1
    assert not stays.task.done()
    (line,) = log_of(lines)
    assert (line["outcome"], line["queue_outcome"]) == ("client-disconnect", "EvictedContextCancelled")
    assert world.ended("EvictedContextCancelled") == 1


@pytest.mark.parametrize("released", [False, True], ids=["before its first step", "as it is released"])
async def test_client_that_leaves_without_asking_for_its_routing_leaves_nothing_in_flight(world, released):
    first, second = world.fill()
    held = world.held()
    if released:
        first.complete(Cause.NATURAL)
        await held.task
        assert world.in_flight() == 2
    else:
        held.task.cancel()  # what it would await never runs
    held.held.abandon()
    assert world.waiting == 0
    await asyncio.gather(held.task, return_exceptions=True)
    first.complete(Cause.NATURAL)
    second.complete(Cause.NATURAL)
    assert world.in_flight() == 0
    assert world.ended("EvictedContextCancelled") == (None if released else 1)


async def test_end_of_flow_control_lets_all_go_a_few_at_a_time(world):
    world.fill()
    held = [world.held(f"f{number % 7}") for number in range(150)]
    world.use(OFF)
    assert 0 < world.waiting < 150
    assert isinstance(world.route(), Routing)  # and whoever comes now waits for nobody
    assert all(isinstance(each, Routing) for each in await settled(*held))
    assert world.in_flight() == 153
    assert world.waiting == 0
    assert world.director.line is None


async def test_flow_control_begins_with_a_new_configuration_and_goes_on_under_the_next():
    world = World(OFF)
    try:
        filled = [world.route() for _ in range(3)]
        assert all(isinstance(each, Routing) for each in filled)
        world.use(ON)
        waiting = world.route()
        assert isinstance(waiting, PendingRequest)
        task = asyncio.create_task(waiting.settle())
        world.use(ON.replace("maxConcurrency: 1", "maxConcurrency: 4"))
        await task
        assert isinstance(waiting.routing(), Routing)
    finally:
        assert world.waiting == 0


async def test_flow_control_that_comes_back_while_some_still_go_keeps_the_rest(world):
    world.fill()
    held = [world.held() for _ in range(100)]
    world.use(OFF)
    left = world.waiting
    assert left
    world.use(ON)
    assert world.waiting == left
    assert world.director.line is not None
    world.director.refuse_waiting()
    found = await settled(*held)
    assert sum(isinstance(each, ShuttingDownError) for each in found) == left


async def test_end_of_the_picker_refuses_what_waits(world):
    world.fill()
    held = [world.held() for _ in range(3)]
    assert world.director.refuse_waiting() == 3
    errors = await settled(*held)
    assert [(error.status, error.reason) for error in errors] == [(503, "rejected-shutting-down")] * 3
    with pytest.raises(ShuttingDownError):
        world.route()
    assert world.ended("EvictedOther") == 3


async def test_empty_pool_is_a_waiting_room_until_it_fills(world):
    world.pool()
    held = world.held()
    world.clock.advance(29.0)
    await asyncio.sleep(0)
    world.pool("a")
    (routing,) = await settled(held)
    assert routing.result.targets[0].name == "a"


async def test_nobody_waits_for_ever_for_an_empty_pool(world):
    world.pool()
    held = world.held()
    world.clock.advance(5.0)
    await until(lambda: world.director.line.requests, "the queue is looked at")
    world.clock.advance(30.0)
    (error,) = await settled(held)
    assert isinstance(error, QueueTimeoutNoEndpointsError)
    assert error.status == 503
    assert world.ended("EvictedNoEndpoints") == 1


async def test_request_for_endpoints_that_are_not_there_waits_for_nothing(world):
    with pytest.raises(NoEndpointsError):
        world.route(subset=Subset.parse(["10.9.9.9"]))
    world.pool()
    world.held(subset=Subset.parse(["10.9.9.9"]))  # unless there are none at all: these may be the first


async def test_subset_that_has_room_goes_while_another_waits(world):
    only_a, only_b = Subset.parse(["10.0.0.1"]), Subset.parse(["10.0.0.2"])
    assert isinstance(world.route(subset=only_a), Routing)
    held_a = world.held(subset=only_a)
    routing = world.route(subset=only_b)
    if isinstance(routing, PendingRequest):
        await routing.settle()
        routing = routing.routing()
    assert routing.result.targets[0].name == "b"
    assert not held_a.task.done()


async def test_page_of_health_is_told_what_waits_and_since_when(world):
    assert world.director.line.requests == 0
    world.fill()
    started = world.clock.now()
    held = world.held(), world.held()
    await until(lambda: world.director.line.requests == 2, "both are seen")
    line = world.director.line
    assert (line.size_bytes, line.since) == (2 * SIZE, started)
    for each in held:
        each.task.cancel()
    await until(lambda: world.director.line.requests == 0, "none is left")


@pytest.mark.parametrize("broken", ["detector", "fairness"])
async def test_plugin_that_raises_is_counted_and_holds_up_nobody(world, broken):
    world.fill()
    held = [world.held(flow) for flow in ("x", "y")]
    text = ON.replace("plugins:\n", f"plugins:\n- {{type: broken-{broken}}}\n")
    if broken == "detector":
        lines = (line for line in text.splitlines() if "maxConcurrency" not in line)  # which is a filter, too
        text = "\n".join(lines).replace("pluginRef: concurrency-detector", "pluginRef: broken-detector")
    else:
        text = text.replace("maxRequests: 200", "defaultPriorityBand: {fairnessPolicyRef: broken-fairness}")
        text = text.replace("maxConcurrency: 1", "maxConcurrency: 4")
    world.use(text)
    assert [type(each) for each in await settled(*held)] == [Routing, Routing]
    labels = {"plugin_name": f"broken-{broken}"}
    assert world.metrics.registry.get_sample_value("llm_d_epp_plugin_failures_total", labels)


@pytest.mark.parametrize("end", ["refused", "left"])
async def test_request_that_did_not_go_leaves_nothing_to_the_garbage_collector(world, end):
    world.fill()
    gc.collect()
    gc.disable()
    try:
        asked = world.held()
        if end == "refused":
            world.director.refuse_waiting()
        else:
            await asyncio.sleep(0)
            asked.task.cancel()
        await until(asked.task.done, "it has gone")
        if end == "refused":
            with contextlib.suppress(ShuttingDownError):
                asked.held.routing()
        del asked
        world.tasks.clear()
        assert not [each for each in gc.get_objects() if isinstance(each, (PendingRequest, QueuedRequest))]
    finally:
        gc.enable()
