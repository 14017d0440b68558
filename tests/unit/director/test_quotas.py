# SPDX-License-Identifier: Apache-2.0
"""Requests of tenants with quotas, from their arrival to every end that they can have."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from epp.framework.accelerators.tag import AcceleratorKind, AcceleratorTag
from epp.framework.datalayer import Report
from epp.framework.quotas import Quota, TotalLimits
from epp.framework.refusals import OverQuotaError, QueueTimeoutError, QuotaExceededError, ShuttingDownError
from epp.framework.snapshot import ACCELERATOR
from epp.routing.director import Cause, PendingRequest, Routing
from tests.support.queueing import OFF, ON, World, settled

LIMITED = """
- type: tenant-quotas
  parameters:
    quotas:
    - {tenant: a, total: {concurrentRequests: 1}}
    - {tenant: quick, total: {tokensPerMinute: 60}}
    - {tenant: refused, total: {concurrentRequests: 1}, whenExceeded: Refuse}
    - {tenant: small, single: {promptTokens: 1}}
"""
WAITING_FOR_QUOTAS = ON.replace("{maxConcurrency: 1}}", "{maxConcurrency: 9}}" + LIMITED.rstrip())
SMALL_ALONE = ON.replace(
    "{maxConcurrency: 1}}",
    """{maxConcurrency: 1}}
- type: tenant-quotas
  parameters: {requestsPerEndpoint: 1, quotas: [{tenant: frugal, single: {acceleratorMemory: 20Gi}}]}""",
)
WITHOUT_QUEUES = OFF + "plugins:" + LIMITED


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World(WAITING_FOR_QUOTAS)
    yield world
    for task in world.tasks:
        task.cancel()


def used(world: World, tenant: str) -> dict[str, float]:
    return {line.key: line.used for line in world.director.quotas.report(tenant)}


async def test_request_over_the_total_waits_for_one_of_its_tenant_while_others_go(world):
    first = world.route("a")
    waits = world.held("a")
    assert isinstance(world.route("b"), Routing)
    assert world.waiting == 1
    first.complete(Cause.NATURAL)
    (routing,) = await settled(waits)
    assert isinstance(routing, Routing)
    assert used(world, "a") == {"total.max.workers.limit": 1}
    routing.complete(Cause.CLIENT_DISCONNECT)
    routing.complete(Cause.NATURAL)
    assert used(world, "a") == {"total.max.workers.limit": 0}


async def test_without_flow_control_or_where_the_quota_says_so_nobody_waits(world):
    assert isinstance(world.route("refused"), Routing)
    with pytest.raises(QuotaExceededError):
        world.route("refused")
    without_queues = World(WITHOUT_QUEUES)
    routing = without_queues.route("a")
    with pytest.raises(QuotaExceededError) as told:
        without_queues.route("a")
    assert (told.value.status, told.value.retry_after_seconds) == (429, 1)
    routing.complete(Cause.NATURAL)
    assert isinstance(without_queues.route("a"), Routing)


async def test_too_large_a_request_is_refused_whatever_is_free(world):
    with pytest.raises(OverQuotaError) as told:
        world.route("small")
    assert told.value.status == 413


async def test_who_would_wait_in_vain_is_told_at_once_and_who_would_not_waits(world):
    routing = world.route("quick")
    assert isinstance(routing, Routing)
    routing.complete(Cause.NATURAL)  # without usage, what was expected stays charged
    with pytest.raises(QuotaExceededError) as told:
        world.route("quick")
    seconds = told.value.retry_after_seconds
    assert seconds > 10  # the TTL
    world.clock.advance(seconds - 9)
    waits = world.held("quick")
    world.clock.advance(9.5)
    (routing,) = await settled(waits)
    assert isinstance(routing, Routing)


async def test_who_waits_too_long_for_a_quota_is_told_which(world):
    assert isinstance(world.route("a"), Routing)
    waits = world.held("a")
    world.director.flow.dispatch()
    world.clock.advance(10)
    (error,) = await settled(waits)
    assert isinstance(error, QuotaExceededError)
    assert not isinstance(error, QueueTimeoutError)


async def test_clients_that_leave_while_they_wait_for_a_quota_leave_nothing(world):
    first = world.route("a")
    waits = world.held("a")
    unheard = world.route("a")
    assert isinstance(unheard, PendingRequest)
    await asyncio.sleep(0)  # its wait begins
    waits.task.cancel()
    unheard.abandon()
    await asyncio.gather(waits.task, return_exceptions=True)
    assert world.waiting == 0
    first.complete(Cause.NATURAL)
    assert used(world, "a") == {"total.max.workers.limit": 0}


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        (lambda world: world.director.quotas.adjust("a", Quota(total=TotalLimits(requests=2))), Routing),
        (lambda world: world.use(ON), Routing),
        (lambda world: world.use(WITHOUT_QUEUES), QuotaExceededError),
        (lambda world: world.director.refuse_waiting(), ShuttingDownError),
    ],
    ids=["larger quota", "no quotas", "no queues", "the picker stops"],
)
async def test_request_that_waits_for_a_quota_is_settled_by_a_change_of_the_picker(world, change, outcome):
    first = world.route("a")
    waits = world.held("a")
    change(world)
    (found,) = await settled(waits)
    assert isinstance(found, outcome)
    first.complete(Cause.NATURAL)


async def test_a_request_that_fits_on_a_full_endpoint_alone_waits_for_that():
    world = World(SMALL_ALONE)
    for endpoint, gib in zip(world.store.snapshot().endpoints.values, (16, 80), strict=False):
        tag = AcceleratorTag(kind=AcceleratorKind.GPU, memory_bytes=gib * 2**30, count=1)
        world.store.tag(endpoint, Report(attributes={ACCELERATOR: tag}))
    first = world.route("frugal")
    assert isinstance(first, Routing)
    assert first.result.targets[0].name == "a"
    waits = world.held("frugal")  # the large one has room, and is too large
    assert world.waiting == 1
    first.complete(Cause.NATURAL)
    (routing,) = await settled(waits)
    assert isinstance(routing, Routing)
    assert routing.result.targets[0].name == "a"


async def test_what_an_observer_breaks_is_given_back(world):
    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    world.director._router.runtime.observer.routed = broken  # noqa: SLF001  no plugin can fail here
    with pytest.raises(RuntimeError):
        world.route("a")
    assert used(world, "a") == {"total.max.workers.limit": 0}


async def test_what_a_model_server_counted_takes_the_place_of_what_was_expected(world):
    routing = world.route("quick")
    before = used(world, "quick")["total.max.tokensPerMinute"]
    body = b'{"usage": {"prompt_tokens": 2, "completion_tokens": 3}}'
    routing.response_started(200, lambda: routing.request.headers, event_stream=False)
    routing.response_piece(body, last=True, now=world.clock.now)
    assert routing.usage is not None
    assert routing.usage.completion_tokens == 3
    routing.complete(Cause.NATURAL)
    assert before > used(world, "quick")["total.max.tokensPerMinute"] == 5
