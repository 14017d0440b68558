# SPDX-License-Identifier: Apache-2.0
"""Ways to name the pods of a picker: labels without an InferencePool, and pools of another API group."""

import pytest
import yaml

from tests.support.kube import manifests as write
from tests.support.kube.fleet import fleet_in
from tests.support.kube.pickers import picker_in
from tests.support.kube.running import CRDS
from tests.support.kube.space import space_in
from tests.support.kube.users import PICKER_ROLE
from tests.support.load import load_on

GROUP = "pools.example.com"
READ = ["get", "list", "watch"]
ONLY_PODS = {**PICKER_ROLE, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": READ}]}
OTHER_GROUP = {
    **PICKER_ROLE,
    "rules": [*PICKER_ROLE["rules"], {"apiGroups": [GROUP], "resources": ["inferencepools"], "verbs": READ}],
}


@pytest.fixture
async def fleet(space):
    """Pods `a` and `b` with two ports, and `other` with another label."""
    async with fleet_in(space, ports=2) as fleet:
        await fleet.start("a", "b", labels={"app": "vllm", "tier": "gold"})
        await fleet.start("other", labels={"app": "vllm"})
        yield fleet


async def test_pods_with_labels_are_the_endpoints_without_a_pool_and_without_rights_to_read_any(fleet, space, tmp_path):
    ports = ",".join(map(str, fleet.ports))
    flags = ("--endpoint-selector=app in (vllm,other),tier==gold,!old", f"--endpoint-target-ports={ports}")
    environment = {"NAMESPACE": space.namespace, "POD_NAME": "standalone-epp-7c9d8f6b5d-x2x7k"}
    async with picker_in(space, tmp_path, *flags, role=ONLY_PODS, **environment) as picker:
        both = ("a-rank-0", "a-rank-1", "b-rank-0", "b-rank-1")
        await picker.uses(*both)
        async with load_on(picker.url) as load:
            await load.reaches(*both)
            await fleet.label("other", tier="gold")
            await fleet.label("a", tier=None)
            await picker.uses("b-rank-0", "b-rank-1", "other-rank-0", "other-rank-1")
            await load.reaches("b-rank-0", "b-rank-1", "other-rank-0", "other-rank-1")
        ready = (await picker.metrics())["llm_d_epp_ready_endpoints"]
        assert ready == {frozenset({"name=standalone-epp"}): 4}
        _, health = await picker.health()
        states = {watch["resource"].split(".")[0]: watch["state"] for watch in health["kubernetes"]["watches"]}
        assert states[f"pods in {space}"] == "up to date"
        assert states["inferenceobjectives"] == states["inferencemodelrewrites"] == "forbidden"


async def test_pool_may_be_of_another_api_group(own_cluster, tmp_path):
    cluster = await own_cluster(crds=("inferencepools",))
    async with space_in(cluster) as space, fleet_in(space) as fleet:
        await cluster.define(pools_of(GROUP))
        await fleet.start("a")
        await space.pool(selector={"app": "another"}, ports=fleet.ports)
        theirs = {**write.pool("pool", ports=fleet.ports), "apiVersion": f"{GROUP}/v1"}
        await space.apply(theirs)
        flags = ("--pool-name=pool", f"--pool-namespace={space}", f"--pool-group={GROUP}")
        async with picker_in(space, tmp_path, *flags, role=OTHER_GROUP) as picker:
            await picker.uses("a-rank-0")
            assert await picker.answers() == {"a-rank-0"}


def pools_of(group: str) -> dict:
    """Return the definition of InferencePools in another group."""
    (path,) = CRDS.glob("inferencepools.*")
    definition = yaml.safe_load(path.read_text())
    definition["metadata"] = {"name": f"inferencepools.{group}"}
    definition["spec"]["group"] = group
    return definition
