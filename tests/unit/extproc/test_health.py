# SPDX-License-Identifier: Apache-2.0
"""Health checks by name, before readiness, while the picker serves, and while it drains."""

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse, HealthListRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from epp.extproc.settings import Transport
from epp.extproc.wire import SERVICE
from tests.support.carriers import carrying

SERVING = HealthCheckResponse.SERVING
NOT_SERVING = HealthCheckResponse.NOT_SERVING
BOTH = "inference-extension"
READY_NAMES = ("readiness", "", SERVICE)
ALIVE = {"liveness": SERVING, BOTH: SERVING, **dict.fromkeys(READY_NAMES, NOT_SERVING)}
"""The statuses of a picker that could serve, and is to get no requests."""


@pytest.fixture(params=Transport)
async def carried(request):
    async with carrying(transport=request.param) as found:
        yield found


@pytest.fixture
def health(carried):
    return carried[1]


@pytest.fixture
async def stub(carried):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{carried[0].port}") as channel:
        yield HealthStub(channel)


async def statuses(stub: HealthStub) -> dict[str, int]:
    names = ("liveness", BOTH, *READY_NAMES)
    return {name: (await stub.Check(HealthCheckRequest(service=name))).status for name in names}


async def test_tf_15_process_is_alive_and_not_ready_before_its_pool_is_known(stub):
    assert await statuses(stub) == ALIVE | {BOTH: NOT_SERVING}


async def test_it_is_alive_throughout_and_ready_as_it_is_told(health, stub):
    health.set_ready(ready=True)
    assert set((await statuses(stub)).values()) == {SERVING}
    health.set_ready(ready=False)
    assert await statuses(stub) == ALIVE


async def test_follower_that_could_serve_is_alive_and_not_ready(health, stub):
    health.stand_by()
    assert await statuses(stub) == ALIVE


async def test_list_says_all_of_it_at_once(health, stub):
    health.set_ready(ready=True)
    listed = (await stub.List(HealthListRequest())).statuses
    assert {name: answer.status for name, answer in listed.items()} == await statuses(stub)


async def test_unknown_name_is_not_found_and_the_known_ones_are_named(stub):
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Check(HealthCheckRequest(service="nonsense"))
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    known = sorted(["", SERVICE, BOTH, "liveness", "readiness"])
    assert refused.value.details() == f"no service 'nonsense': {known}"


@pytest.mark.parametrize("name", READY_NAMES)
async def test_watch_tells_each_change_once(health, stub, name):
    watch = stub.Watch(HealthCheckRequest(service=name))
    assert (await watch.read()).status == NOT_SERVING
    health.set_ready(ready=False)  # no news
    health.set_ready(ready=True)
    assert (await watch.read()).status == SERVING
    health.set_ready(ready=False)
    assert (await watch.read()).status == NOT_SERVING


async def test_watch_of_the_name_for_both_probes_hears_of_readiness_and_not_of_draining(health, stub):
    watch = stub.Watch(HealthCheckRequest(service=BOTH))
    assert (await watch.read()).status == NOT_SERVING
    health.set_ready(ready=True)
    assert (await watch.read()).status == SERVING
    health.set_ready(ready=False)
    health.close()
    assert await watch.read() is grpc.aio.EOF


async def test_watch_of_an_unknown_name_says_so_and_stays_open(health, stub):
    watch = stub.Watch(HealthCheckRequest(service="nonsense"))
    assert (await watch.read()).status == HealthCheckResponse.SERVICE_UNKNOWN
    health.set_ready(ready=True)
    assert not watch.done()


async def test_watches_end_when_it_closes(health, stub):
    watches = [stub.Watch(HealthCheckRequest(service=name)) for name in ("liveness", "readiness", "nonsense")]
    for watch in watches:
        await watch.read()
    health.close()
    assert [await watch.read() for watch in watches] == [grpc.aio.EOF] * 3


@pytest.mark.parametrize("method", ["Check", "Watch"])
async def test_bytes_that_are_no_message_are_refused(carried, method):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{carried[0].port}") as channel:
        call = channel.unary_unary(f"/grpc.health.v1.Health/{method}")(b"\xff\xff")
        assert await call.code() is grpc.StatusCode.INTERNAL
