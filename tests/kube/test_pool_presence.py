# SPDX-License-Identifier: Apache-2.0
"""The pool, or the API server, is not there: at the start, or later."""

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from tests.support.kube.fleet import fleet_in
from tests.support.kube.pickers import Picker, picker_as, picker_in, pool_of
from tests.support.kube.space import space_in
from tests.support.kube.users import PICKER_ROLE
from tests.support.waiting import until

NO_ENDPOINTS = (503, "rejected-no-endpoints")


@pytest.fixture
async def fleet(space):
    """Two ready pods, and no pool."""
    async with fleet_in(space) as fleet:
        await fleet.start("a", "b")
        yield fleet


async def test_requests_are_refused_while_the_pool_is_deleted_and_served_once_it_is_back(fleet, space, tmp_path):
    pool = await space.pool(ports=fleet.ports)
    async with picker_in(space, tmp_path) as picker:
        await picker.uses("a-rank-0", "b-rank-0")
        await space.delete(pool)
        await picker.uses()
        assert await picker.refusal() == NO_ENDPOINTS
        await fleet.delete("b")
        await fleet.start("c")
        await space.pool(ports=fleet.ports)
        await picker.uses("a-rank-0", "c-rank-0")
        assert await picker.answers() == {"a-rank-0", "c-rank-0"}


async def test_picker_is_ready_without_a_pool_and_serves_it_when_it_is_created(fleet, space, tmp_path):
    async with picker_in(space, tmp_path) as picker:
        assert await picker.refusal() == NO_ENDPOINTS
        await space.pool("another", ports=fleet.ports)
        await space.pool(ports=fleet.ports)
        await picker.uses("a-rank-0", "b-rank-0")
        assert await picker.answers() == {"a-rank-0", "b-rank-0"}
        await picker.knows(1, "inferencepools.inference.networking.k8s.io")


async def test_picker_of_a_grpc_api_is_ready_while_the_protocol_of_its_pool_is_http2(fleet, space, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(
        "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins: [{type: vllmgrpc-parser}]\n"
        "requestHandler: {parsers: [{pluginRef: vllmgrpc-parser}]}\n"
    )
    await space.pool(ports=fleet.ports)
    async with picker_in(space, tmp_path, *pool_of(space), f"--config-file={config}", ready=False) as picker:
        await picker.command.says('"msg":"standing by"')
        assert await _readiness(picker) == HealthCheckResponse.NOT_SERVING
        _, health = await picker.health()
        assert health["reason"] == "vllmgrpc-parser: the appProtocol of the InferencePool must be kubernetes.io/h2c"

        async def is_ready() -> bool:
            return await _readiness(picker) == HealthCheckResponse.SERVING

        await space.pool(ports=fleet.ports, appProtocol="kubernetes.io/h2c")
        await until(is_ready, "the picker has seen the protocol")


async def test_picker_waits_for_the_definition_of_pools(own_cluster, tmp_path):
    async with space_in(await own_cluster(crds=("inferenceobjectives",))) as space, fleet_in(space) as fleet:
        await fleet.start("a")
        async with picker_in(space, tmp_path, ready=False) as picker:
            await picker.command.says("not installed")
            assert await _readiness(picker) == HealthCheckResponse.NOT_SERVING
            await space.cluster.install("inferencepools")
            await space.pool(ports=fleet.ports)
            await picker.command.says('"msg":"ready"')
            await picker.uses("a-rank-0")
            await until(lambda: _serves(picker), "Envoy has seen that the picker is ready")


async def test_picker_says_that_it_waits_for_the_api_server_and_is_ready_when_that_comes_up(own_cluster, tmp_path):
    async with space_in(await own_cluster(crds=("inference",))) as space, fleet_in(space) as fleet:
        await fleet.start("a")
        await space.pool(ports=fleet.ports)
        kubeconfig = (await space.user("picker", PICKER_ROLE)).kubeconfig(tmp_path / "kubeconfig")
        space.cluster.server.kill()
        async with picker_as(kubeconfig, *pool_of(space), ready=False) as picker:
            await picker.command.says("objects not readable")
            assert await _readiness(picker) == HealthCheckResponse.NOT_SERVING

            async def asked_for_each() -> bool:
                return "not listed yet" not in (await picker.health())[1]["reason"]

            await until(asked_for_each, "each kind has been asked for, one after the other", seconds=60)
            status, health = await picker.health()
            assert (status, health["ready"]) == (503, False)
            assert health["reason"].startswith(f"starting: inferenceobjectives.llm-d.ai in {space}, ")
            assert f": the API server cannot be reached: {space.cluster.access.url}: " in health["reason"]
            states = {watch["resource"]: watch["state"] for watch in health["kubernetes"]["watches"]}
            assert states
            assert set(states.values()) <= {"not listed yet", "the API server cannot be reached"}
            await space.cluster.server.start()
            await picker.command.says('"msg":"ready"')
            await picker.uses("a-rank-0")
            await until(lambda: _serves(picker), "Envoy has seen that the picker is ready")
            status, health = await picker.health()
            assert (status, "reason" in health) == (200, False)


async def test_picker_that_waits_for_the_api_server_ends_at_once_when_asked_to(own_cluster, tmp_path):
    async with space_in(await own_cluster(crds=("inference",))) as space:
        kubeconfig = (await space.user("picker", PICKER_ROLE)).kubeconfig(tmp_path / "kubeconfig")
        space.cluster.server.kill()
        async with picker_as(kubeconfig, *pool_of(space), ready=False) as picker:
            await picker.command.says("objects not readable")
            picker.command.terminate()
            assert await picker.command.end() == 0
            assert not any("Traceback" in line or "draining" in line for line in picker.command.err), picker.command


async def _readiness(picker: Picker) -> int:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{picker.health_port}") as channel:
        return (await HealthStub(channel).Check(HealthCheckRequest(service="readiness"))).status


async def _serves(picker: Picker) -> bool:
    status, _ = await picker.refusal()
    return status == 200
