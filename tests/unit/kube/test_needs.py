# SPDX-License-Identifier: Apache-2.0
"""Rights of a picker, and the roles that grant them."""

from epp.kube.resources import Importance, binding, needs_of_picker, role


def acts(needs, importance):
    return {
        (verb, need.resource.title, need.namespace, need.name)
        for need in needs
        if need.importance is importance
        for verb in need.verbs
    }


def test_required_are_pods_the_pool_and_the_lease_in_one_namespace():
    needs = needs_of_picker("llm", pool_group="inference.networking.k8s.io", lease="epp-llm-pool.llm-d.ai")
    lease = ("leases.coordination.k8s.io", "llm", "epp-llm-pool.llm-d.ai")
    assert acts(needs, Importance.REQUIRED) == {
        *((verb, "pods", "llm", "") for verb in ("get", "list", "watch")),
        *((verb, "inferencepools.inference.networking.k8s.io", "llm", "") for verb in ("get", "list", "watch")),
        ("create", "leases.coordination.k8s.io", "llm", ""),
        ("get", *lease),
        ("update", *lease),
    }


def test_pods_without_a_pool_need_neither_pools_nor_events():
    needs = needs_of_picker("llm", pool_group=None)
    assert {need.resource.plural for need in needs if need.importance is Importance.REQUIRED} == {"pods"}
    assert not {need.resource.plural for need in needs} & {"inferencepools", "events", "leases"}


def test_nothing_outside_the_namespace_is_more_than_optional():
    needs = needs_of_picker("llm", pool_group="inference.networking.k8s.io", lease="l")
    assert {need.importance for need in needs if not need.namespace} == {Importance.OPTIONAL}
    assert {need.namespace for need in needs} == {"llm", ""}


def test_claims_of_the_pool_s_pods_are_read_in_its_namespace_and_slices_of_gpus_everywhere():
    places = {need.resource.plural: need.namespace for need in needs_of_picker("llm", pool_group=None)}
    assert (places["resourceclaims"], places["variantautoscalings"]) == ("llm", "llm")
    assert (places["allocationclaims"], places["instaslices"], places["nodes"]) == ("", "", "")


def test_role_has_a_rule_for_each_group_verbs_and_name():
    needs = needs_of_picker("llm", pool_group=None, lease="l")
    wanted = [need for need in needs if need.importance is not Importance.OPTIONAL]
    granted = role("picker", wanted, namespace="llm")
    read = ["get", "list", "watch"]
    policies = ["inferenceobjectives", "inferencemodelrewrites"]
    leases = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    assert granted == {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "picker", "namespace": "llm"},
        "rules": [
            {"apiGroups": [""], "resources": ["pods"], "verbs": read},
            {**leases, "verbs": ["create"]},
            {**leases, "resourceNames": ["l"], "verbs": ["get", "update"]},
            {"apiGroups": ["llm-d.ai"], "resources": policies, "verbs": read},
            {"apiGroups": ["inference.networking.x-k8s.io"], "resources": policies, "verbs": read},
        ],
    }


def test_role_without_a_namespace_is_a_cluster_role_bound_in_all_of_them():
    granted = role("picker", [])
    assert (granted["kind"], granted["metadata"]) == ("ClusterRole", {"name": "picker"})
    bound = binding(granted, "picker", "alice@example.com")
    assert (bound["kind"], bound["metadata"]) == ("ClusterRoleBinding", {"name": "picker"})
    assert bound["roleRef"] == {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "picker"}
    assert bound["subjects"] == [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice@example.com"}]


def test_service_account_is_bound_by_namespace_and_name():
    bound = binding(role("r", [], namespace="llm"), "r", "system:serviceaccount:gateways:picker", namespace="llm")
    assert bound["metadata"] == {"name": "r", "namespace": "llm"}
    assert bound["subjects"] == [{"kind": "ServiceAccount", "namespace": "gateways", "name": "picker"}]
    odd = binding(role("r", []), "r", "system:serviceaccount:only-one-part")
    assert odd["subjects"][0]["kind"] == "User"
