# SPDX-License-Identifier: Apache-2.0
"""What probes and gateways hear, by name and over time."""

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse, HealthListRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from epp.extproc.budgets import Budgets, BudgetSettings
from epp.extproc.grpcio_carrier import CallHandlers
from epp.extproc.http2.limits import Limits
from epp.extproc.http2.server import GrpcServer
from epp.extproc.http2_carrier import bound_socket
from epp.extproc.server import Health, health_methods
from epp.extproc.settings import ServerSettings, Transport
from epp.extproc.wire import SERVICE

SERVING = HealthCheckResponse.SERVING
NOT_SERVING = HealthCheckResponse.NOT_SERVING
BOTH = "inference-extension"
READY_NAMES = ("readiness", "", SERVICE)


@pytest.fixture
async def health():
    return Health()


@pytest.fixture(params=[Transport.ASYNCIO, Transport.GRPCIO])
async def stub(health, request):
    if request.param is Transport.GRPCIO:
        server = grpc.aio.server()
        handlers = CallHandlers(health_methods(health), ServerSettings("unset"), Budgets(BudgetSettings()))
        server.add_generic_rpc_handlers((handlers,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
    else:
        server = GrpcServer(health_methods(health), Limits())
        sock = bound_socket("127.0.0.1:0")
        port = sock.getsockname()[1]
        await server.start(sock)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield HealthStub(channel)
    await server.stop(0)


async def statuses(stub: HealthStub) -> dict[str, int]:
    names = ("liveness", BOTH, *READY_NAMES)
    return {name: (await stub.Check(HealthCheckRequest(service=name))).status for name in names}


async def test_tf_15_process_is_alive_and_not_ready_before_its_pool_is_known(stub):
    assert await statuses(stub) == {"liveness": SERVING, **dict.fromkeys((BOTH, *READY_NAMES), NOT_SERVING)}


async def test_it_is_alive_throughout_and_ready_as_it_is_told(health, stub):
    health.set_ready(ready=True)
    assert set((await statuses(stub)).values()) == {SERVING}
    health.set_ready(ready=False)
    assert await statuses(stub) == {"liveness": SERVING, BOTH: SERVING, **dict.fromkeys(READY_NAMES, NOT_SERVING)}


async def test_follower_that_could_serve_is_alive_and_not_ready(health, stub):
    health.stand_by()
    assert await statuses(stub) == {"liveness": SERVING, BOTH: SERVING, **dict.fromkeys(READY_NAMES, NOT_SERVING)}
    health.set_ready(ready=True)
    assert set((await statuses(stub)).values()) == {SERVING}
    health.set_ready(ready=False)
    assert await statuses(stub) == {"liveness": SERVING, BOTH: SERVING, **dict.fromkeys(READY_NAMES, NOT_SERVING)}


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
