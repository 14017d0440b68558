# SPDX-License-Identifier: Apache-2.0
"""What a test leaves behind in the API server that all share: nothing that another one could see."""

from tests.support.kube import manifests as write
from tests.support.kube.space import space_in
from tests.support.kube.users import PICKER_ROLE

SCORE = {
    "apiVersion": "cluster.open-cluster-management.io/v1alpha1",
    "kind": "AddOnPlacementScore",
    "metadata": {"name": "resource-usage-score"},
}


async def test_objects_of_all_kinds_are_gone_with_the_test_that_made_them(cluster, admin):
    async with space_in(cluster) as space:
        await space.pool()
        await space.pod("a", "127.0.0.1")
        await space.terminate(await space.pod("b", "127.0.0.2"))
        await space.apply(SCORE)
        await space.apply(write.objective("interactive", pool="pool", priority=10))
        await space.node(f"node-of-{space}")
        await space.user("picker", PICKER_ROLE)
        assert (await admin.get({**SCORE, "metadata": {**SCORE["metadata"], "namespace": space.namespace}}))["kind"]
    for version, kind in (
        ("inference.networking.k8s.io/v1", "InferencePool"),
        ("v1", "Pod"),
        (SCORE["apiVersion"], SCORE["kind"]),
        ("llm-d.ai/v1alpha2", "InferenceObjective"),
        ("v1", "ServiceAccount"),
        ("rbac.authorization.k8s.io/v1", "Role"),
        ("rbac.authorization.k8s.io/v1", "RoleBinding"),
    ):
        assert (await admin.list(version, kind, space.namespace))["items"] == [], kind
    nodes = (await admin.list("v1", "Node"))["items"]
    assert f"node-of-{space}" not in [each["metadata"]["name"] for each in nodes]
