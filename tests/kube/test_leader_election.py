# SPDX-License-Identifier: Apache-2.0
"""Of several replicas one is ready, and another takes over when it ends, with or without notice."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from tests.support.kube import manifests as write
from tests.support.kube.fleet import Fleet, fleet_in
from tests.support.kube.relay import relay_to
from tests.support.kube.replicas import (
    ELECTION,
    EVENTS,
    LEASES,
    NOT_SERVING,
    PATIENCE_SECONDS,
    SERVING,
    Replica,
    leader_of,
    replica,
    role,
)
from tests.support.kube.space import Space, space_in
from tests.support.kube.users import User
from tests.support.serving import answer, ask, destination_of, exchange
from tests.support.waiting import until

LEASE_SECONDS = 15
FOR_EVER = "10m"


@pytest.fixture
async def fleet(space) -> AsyncIterator[Fleet]:
    async with fleet_with_pool(space) as fleet:
        yield fleet


@asynccontextmanager
async def fleet_with_pool(space: Space) -> AsyncIterator[Fleet]:
    """One pod with a server, and its pool."""
    async with fleet_in(space) as fleet:
        await fleet.start("a")
        await space.pool(ports=fleet.ports)
        yield fleet


@pytest.fixture
async def start(fleet, space, tmp_path) -> AsyncIterator[Callable[..., object]]:
    """Start a replica: `await start("epp-1")`."""
    async with AsyncExitStack() as stack:
        yield starter(stack, await space.user("picker", role(LEASES, EVENTS)), tmp_path)


def starter(stack: AsyncExitStack, user: User, directory: Path) -> Callable[..., object]:
    kubeconfig = user.kubeconfig(directory / "kubeconfig")

    async def start(name: str, *flags: str, access: Path = kubeconfig) -> Replica:
        return await stack.enter_async_context(replica(access, user.namespace, ELECTION, *flags, POD_NAME=name))

    return start


def lease_of(space: Space) -> dict:
    return write.manifest("coordination.k8s.io/v1", "Lease", f"epp-{space}-pool.llm-d.ai", space.namespace)


async def lease(space: Space) -> dict:
    return (await space.admin.get(lease_of(space)))["spec"]


async def holders(space: Space, seen: list[str]) -> None:
    """Take down each holder of the lease: its pod, or nothing."""
    async for event in space.admin.watch("coordination.k8s.io/v1", "Lease", space.namespace):
        holder = event["object"]["spec"]["holderIdentity"].partition("_")[0]
        if seen[-1:] != [holder]:
            seen.append(holder)


@pytest.fixture
async def history(space) -> AsyncIterator[list[str]]:
    """All holders of the lease in the namespace so far."""
    seen: list[str] = []
    watching = asyncio.create_task(holders(space, seen))
    yield seen
    watching.cancel()


async def test_one_replica_is_ready_and_the_others_stand_by_with_all_they_need(start, space, fleet):
    replicas = [await start(f"epp-{number}") for number in range(3)]
    leader = await leader_of(*replicas)
    spec = await lease(space)
    assert (spec["leaseDurationSeconds"], spec["leaseTransitions"]) == (LEASE_SECONDS, 0)
    sample = frozenset({f"name=epp-{space.namespace}-pool.llm-d.ai"})
    for number, each in enumerate(replicas):

        async def knows_all(each: Replica = each) -> bool:
            _, page = await each.page()
            return page["reachable"] == 1 and page["kubernetes"]["election"]["holder"] == spec["holderIdentity"]

        await until(knows_all, f"replica {number} knows the endpoint and the leader", seconds=PATIENCE_SECONDS)
        status, page = await each.page()
        leads = each is leader
        assert (page["leader"], page["ready"], status) == (leads, leads, 200 if leads else 503)
        assert page["kubernetes"]["election"]["identity"].startswith(f"epp-{number}_")
        assert page["kubernetes"]["election"]["since"] == spec["acquireTime"]
        assert (await each.served.metrics())["leader_election_master_status"] == {sample: float(leads)}
        async with each.served.channel() as channel:  # a gateway that has not noticed is served by followers too
            assert await destination_of(channel) == fleet.servers["a-rank-0"].address


async def test_lease_of_a_replica_that_is_told_to_end_is_released_before_its_streams_end(start, history):
    first = await start("epp-1", f"--drain-timeout={FOR_EVER}")
    await leader_of(first)
    second = await start("epp-2")
    async with first.served.channel() as channel, first.served.health() as health:
        watched = HealthStub(health).Watch(HealthCheckRequest(service="readiness"))
        assert (await watched.read()).status == SERVING
        call = exchange(channel)
        await ask(call)
        first.command.terminate()
        assert (await watched.read()).status == NOT_SERVING
        assert await leader_of(first, second) is second
        assert first.command.running
        await answer(call)
    assert await first.command.end() == 0
    assert history == ["epp-1", "", "epp-2"]
    assert first.events("lease released") == 1


async def test_lease_of_a_replica_that_is_killed_is_taken_when_it_expires(start, history, space):
    first = await start("epp-1")
    await leader_of(first)
    second, third = await start("epp-2"), await start("epp-3")
    first.command.kill()
    await first.command.end()
    heir = await leader_of(second, third)
    assert history == ["epp-1", "epp-2" if heir is second else "epp-3"]
    assert (await lease(space))["leaseTransitions"] == 1


async def test_single_replica_that_is_restarted_is_ready_again(start, history):
    first = await start("epp-1")
    await leader_of(first)
    first.command.terminate()
    assert await first.command.end() == 0
    await leader_of(await start("epp-1"))
    assert history == ["epp-1", "", "epp-1"]


async def test_absence_of_the_api_server_changes_nothing(own_cluster, tmp_path):
    cluster = await own_cluster(crds=("inferencepools", "inferenceobjectives", "inferencemodelrewrites"))
    async with space_in(cluster) as space, fleet_with_pool(space) as fleet, AsyncExitStack() as stack:
        start = starter(stack, await space.user("picker", role(LEASES, EVENTS)), tmp_path)
        replicas = [await start(f"epp-{number}") for number in range(3)]
        leader = await leader_of(*replicas)
        followers = [each for each in replicas if each is not leader]
        holder = (await lease(space))["holderIdentity"]
        stop = asyncio.Event()
        sending = asyncio.create_task(keep_sending(leader, fleet.servers["a-rank-0"].address, stop))
        async with leader.served.health() as health:
            watched = HealthStub(health).Watch(HealthCheckRequest(service="readiness"))
            assert (await watched.read()).status == SERVING
            cluster.server.kill()
            for each in replicas:
                await each.command.says('"msg":"lease not readable"')
            await asyncio.sleep(LEASE_SECONDS)  # 10 s have passed before
            assert [await each.ready() for each in (leader, *followers)] == [True, False, False]
            await cluster.server.start()
            for each in replicas:
                await each.command.says('"msg":"lease readable again"')
            await asyncio.sleep(LEASE_SECONDS)  # in which a follower would take over
            assert [await each.ready() for each in (leader, *followers)] == [True, False, False]
            change = asyncio.ensure_future(watched.read())
            stop.set()
            assert await sending > 10
            assert not change.done()  # it was ready throughout
            change.cancel()
        assert (await lease(space))["holderIdentity"] == holder
        assert [each.events("this replica leads") for each in (leader, *followers)] == [1, 0, 0]


async def keep_sending(leader: Replica, address: str, stop: asyncio.Event) -> int:
    """Send requests until told to stop; return the number of those that were routed, which is all of them."""
    sent = 0
    async with leader.served.channel() as channel:
        while not stop.is_set():
            assert await destination_of(channel) == address
            sent += 1
            await asyncio.sleep(0.05)
    return sent


@pytest.mark.parametrize("silent", [False, True], ids=["connections reset", "no answers"])
async def test_leader_that_alone_is_cut_off_serves_until_it_learns_of_another(start, space, tmp_path, history, silent):
    async with relay_to(space.cluster.access) as relay:
        user = await space.user("picker", role(LEASES, EVENTS))
        behind = tmp_path / "behind"
        behind.mkdir()
        through = User(space.admin, relay.access, space.namespace, "picker")
        through.token = user.token
        first = await start("epp-1", access=through.kubeconfig(behind / "kubeconfig"))
        await leader_of(first)
        second = await start("epp-2")
        async with first.served.channel() as channel:
            call = exchange(channel)
            await ask(call)
            relay.swallow() if silent else relay.cut()
            await leader_of(second)
            assert await first.ready()  # for want of an answer alone it does not step down
            relay.deliver() if silent else await relay.join()
            await first.command.says('"msg":"this replica no longer leads"')
            assert await leader_of(first, second) is second
            await answer(call)  # its streams went on
        assert history == ["epp-1", "epp-2"]
        second.command.terminate()
        assert await leader_of(first) is first  # it is a follower like any other, and has its turn again
        assert history == ["epp-1", "epp-2", "", "epp-1"]


async def test_without_the_right_to_leases_no_replica_is_ready_and_the_log_has_the_remedy(fleet, space, tmp_path):
    async with AsyncExitStack() as stack:
        user = await space.user("picker", role())
        first = await starter(stack, user, tmp_path)("epp-1")
        said = await first.command.says('"msg":"no access to the lease"')
        assert f"allow get, create and update of leases.coordination.k8s.io in {space.namespace}" in said
        assert not await first.ready()
        assert "forbidden" in (await first.election())["reason"]
        await space.grant(user, {**role(LEASES), "metadata": {"name": "election"}})
        assert await leader_of(first) is first
        assert first.events("no access to the lease") == 1
        assert "reason" not in await first.election()


async def test_lease_that_somebody_deletes_is_made_again(start, space):
    first = await start("epp-1")
    await leader_of(first)
    await space.admin.delete(lease_of(space))

    async def held() -> bool:
        listed = await space.admin.list("coordination.k8s.io/v1", "Lease", space.namespace)
        return [item["spec"]["holderIdentity"].partition("_")[0] for item in listed["items"]] == ["epp-1"]

    await until(held, "the lease is held", seconds=PATIENCE_SECONDS)
    assert await first.ready()
