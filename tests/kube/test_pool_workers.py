# SPDX-License-Identifier: Apache-2.0
"""A picker of several processes, whose main process reads the pods, and whose workers read the objects of plugins."""

from tests.support.kube import manifests as write
from tests.support.kube.fleet import fleet_in
from tests.support.kube.pickers import picker_in, pool_of
from tests.support.waiting import until


async def test_workers_use_the_pods_of_the_pool_and_follow_its_policies(space, tmp_path):
    async with fleet_in(space) as fleet:
        await fleet.start("a", "b")
        await space.pool(ports=fleet.ports)
        async with picker_in(space, tmp_path, *pool_of(space), "--workers=2") as picker:
            await picker.uses("a-rank-0", "b-rank-0")
            assert await picker.answers() == {"a-rank-0", "b-rank-0"}
            await fleet.start("c")
            await picker.uses("a-rank-0", "b-rank-0", "c-rank-0")
            await fleet.delete("a")
            await picker.uses("b-rank-0", "c-rank-0")

            async def both() -> bool:
                return await picker.answers() == {"b-rank-0", "c-rank-0"}

            await until(both, "the pods that are left serve", seconds=60)
            status, health = await picker.health()
            assert status == 200
            assert health["workers"]["serving"] == 2


async def test_objectives_of_the_cluster_apply_in_every_worker(space, tmp_path):
    async with fleet_in(space) as fleet:
        await fleet.start("a")
        await space.pool(ports=fleet.ports)
        await space.apply(write.objective("low", pool="pool", priority=-1, namespace=space.namespace))
        async with picker_in(space, tmp_path, *pool_of(space), "--workers=2") as picker:
            await picker.uses("a-rank-0")

            async def counted() -> bool:
                for _ in range(4):
                    await picker.ask(extra_headers={"x-llm-d-inference-objective": "low"})
                shown = (await picker.metrics()).get("llm_d_epp_request_total", {})
                return any("priority=-1" in labels for labels in shown)

            await until(counted, "requests have the priority of their objective", seconds=60)
