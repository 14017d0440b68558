# SPDX-License-Identifier: Apache-2.0
"""The API server of these tests accepts, refuses and keeps objects as that of any cluster does."""

import pytest

from tests.support.kube import manifests as write
from tests.support.kube.client import RefusedError, listed


async def test_pod_has_the_address_it_was_given_and_is_ready_until_it_is_not(space):
    pod = await space.pod("a", "127.0.0.9")
    assert pod["status"]["podIP"] == "127.0.0.9"
    assert _condition(pod, "Ready") == "True"
    assert _condition(await space.ready(pod, ready=False), "Ready") == "False"


async def test_terminating_pod_stays_until_it_is_deleted(space):
    pod = await space.terminate(await space.pod("a", "127.0.0.9"))
    assert "deletionTimestamp" in pod["metadata"]
    await space.delete(pod)
    with pytest.raises(RefusedError, match="404 NotFound"):
        await space.admin.get(pod)


async def test_pod_of_the_same_name_has_another_uid(space):
    before = await space.pod("a", "127.0.0.9")
    await space.delete(before)
    after = await space.pod("a", "127.0.0.9")
    assert before["metadata"]["uid"] != after["metadata"]["uid"]


async def test_pods_are_selected_by_their_labels(space):
    first, _ = await space.pods(["127.0.0.9", "127.0.0.10"], labels={"app": "vllm", "llm-d.ai/role": "decode"})
    await space.label(first, **{"llm-d.ai/role": None, "app": "other"})
    found = await space.admin.list("v1", "Pod", space.namespace, labelSelector="app=vllm,llm-d.ai/role=decode")
    assert listed(found["items"]) == ["pod-1"]


async def test_thousands_of_pods_are_made(space):
    count = 1000
    await space.pods([f"10.0.{index // 250}.{index % 250 + 1}" for index in range(count)])
    pods = await space.admin.list("v1", "Pod", space.namespace)
    assert len(pods["items"]) == count
    assert {_condition(pod, "Ready") for pod in pods["items"]} == {"True"}


async def test_node_has_labels_and_the_identity_of_its_boot(space):
    node = await space.node("node-9", labels={"nvidia.com/gpu.product": "H100"}, boot_id="boot-1")
    assert node["metadata"]["labels"]["nvidia.com/gpu.product"] == "H100"
    assert node["status"]["nodeInfo"]["bootID"] == "boot-1"


async def test_pool_has_the_defaults_of_its_kind(space):
    pool = await space.pool(ports=[8000, 8001])
    assert pool["spec"]["appProtocol"] == "http"
    assert pool["spec"]["endpointPickerRef"]["failureMode"] == "FailClose"


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ({"ports": range(8000, 8009)}, "must have at most 8 items"),
        ({"ports": []}, "should have at least 1 items"),
        ({"ports": [8000, 8000]}, "a port is listed twice"),
        ({"ports": [65536]}, "less than or equal to 65535"),
        ({"appProtocol": "grpc"}, "Unsupported value"),
        ({"endpointPickerRef": {"name": "epp"}}, "a Service needs a port"),
    ],
)
async def test_pool_that_breaks_a_rule_of_its_kind_is_refused(space, spec, complaint):
    with pytest.raises(RefusedError, match=complaint) as refused:
        await space.pool(**spec)
    assert refused.value.status == 422


@pytest.mark.parametrize("api", [write.POLICIES, write.LEGACY_POLICIES])
async def test_objective_and_rewrite_are_kept_in_both_groups(space, api):
    await space.apply(write.objective("batch", pool="pool", priority=-1, api=api))
    rules = [write.rule("chat", **{"chat-v1": 90, "chat-v2": 10}), write.rule(None, fallback=None)]
    await space.apply(write.rewrite("canary", pool="pool", rules=rules, api=api))
    (objective,) = (await space.admin.list(api, "InferenceObjective", space.namespace))["items"]
    (rewrite,) = (await space.admin.list(api, "InferenceModelRewrite", space.namespace))["items"]
    assert objective["spec"]["priority"] == -1
    assert rewrite["spec"]["rules"] == rules


def _condition(pod: dict, kind: str) -> str:
    (status,) = [condition["status"] for condition in pod["status"]["conditions"] if condition["type"] == kind]
    return status
