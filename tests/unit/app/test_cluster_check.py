# SPDX-License-Identifier: Apache-2.0
"""What a picker would find in a cluster, and whether it would become ready."""

import pytest

from epp.app import PoolChoice, cluster_check
from epp.app.cluster_check import check_cluster
from epp.framework.endpoint import LabelSelector
from epp.kube.resources import (
    LEGACY_OBJECTIVES,
    LEGACY_REWRITES,
    OBJECTIVES,
    PODS,
    REWRITES,
    Importance,
    needs_of_picker,
    pools,
)
from epp.pool.discovery import PodTarget, PoolName

GROUP = "inference.networking.k8s.io"
POOLS = pools(GROUP).path("v1")
POOL = PoolName("pool", "llm", GROUP)
SERVICE = "/api/v1/namespaces/llm/services/pool-epp"


HARDWARE = frozenset({"nodes", "acceleratorclasses", "resourceslices", "resourceclaims"})


@pytest.fixture(autouse=True)
def few_kinds(monkeypatch):
    """Leave out most optional kinds, as a check sends several requests for each."""

    def needs(*args, **more):
        found = needs_of_picker(*args, **more)
        return [
            each for each in found if each.importance is not Importance.OPTIONAL or each.resource.plural in HARDWARE
        ]

    monkeypatch.setattr(cluster_check, "needs_of_picker", needs)
    monkeypatch.setattr(cluster_check, "needs_of_hub", lambda _namespace: ())


@pytest.fixture
def check(scripted):
    """Look at the cluster of the script."""

    async def check(source=POOL, lease=None):
        return await check_cluster(scripted, source, "llm", pool_group=GROUP, lease=lease)

    return check


@pytest.fixture
def pool():
    """Make an InferencePool."""

    def make(name="pool", ports=(8000,), **spec):
        labels = {"matchLabels": {"app": "vllm"}}
        written = {"selector": labels, "targetPorts": [{"number": port} for port in ports], **spec}
        return {"metadata": {"name": name, "namespace": "llm"}, "spec": written}

    return make


@pytest.fixture
def cluster(script, pool, pod):
    """A cluster with one pool of one ready pod, and all rights of the namespace."""
    script.objects[POOLS] = [pool()]
    script.objects[PODS.path("v1")] = [pod()]
    script.install(*(each.path("v1alpha2") for each in (OBJECTIVES, LEGACY_OBJECTIVES, REWRITES, LEGACY_REWRITES)))
    script.allow("pods", "inferencepools", "inferenceobjectives", "inferencemodelrewrites")
    script.allow("events", verbs=("create", "patch"))
    script.answers[SERVICE] = (403, {"code": 403})
    return script


async def test_picker_with_its_role_would_become_ready(check, cluster):
    report = await check()
    assert (report.would_be_ready, report.summary) == (True, "The picker would become ready, with 1 endpoint.")
    assert (report.errors, report.warnings, report.notes, report.roles) == ((), (), (), ())
    assert (report.pool.labels, report.pool.ports, report.pool.endpoints) == ("app=vllm", (8000,), 1)


@pytest.mark.parametrize(
    ("verb", "ready", "summary"),
    [
        ("list", False, "The picker would not become ready: it cannot use pods."),
        ("watch", True, "The picker would become ready, but would not see changes of pods."),
    ],
)
async def test_missing_verb_is_an_error_and_the_outcome_says_what_it_means(check, cluster, verb, ready, summary):
    cluster.rights.remove(("get", "pods"))
    report = await check()
    assert (report.errors, report.warnings, report.roles) == ((), (), ())  # it does not matter
    cluster.rights.remove((verb, "pods"))
    report = await check()
    assert report.errors == (f"pods: {verb} forbidden in namespace llm (endpoints): apply the Role below",)
    assert (report.would_be_ready, report.summary) == (ready, summary)
    assert [each["kind"] for each in report.roles] == ["Role", "RoleBinding"]


async def test_lease_that_may_not_be_written_keeps_the_picker_from_being_ready(check, cluster):
    cluster.install("/apis/coordination.k8s.io/v1/leases")
    report = await check(lease="epp-llm-pool.llm-d.ai")
    assert not report.would_be_ready
    assert [error.partition(" forbidden")[0] for error in report.errors] == [
        "leases.coordination.k8s.io: create",
        "leases.coordination.k8s.io epp-llm-pool.llm-d.ai: get and update",
    ]
    cluster.allow("leases", verbs=("create", "get", "update"))
    assert (await check(lease="epp-llm-pool.llm-d.ai")).would_be_ready


async def test_forbidden_objectives_are_a_warning_and_absent_ones_are_nothing(check, cluster):
    cluster.rights -= {(verb, "inferenceobjectives") for verb in ("get", "list", "watch")}
    report = await check()
    assert report.would_be_ready
    (warning,) = report.warnings
    assert warning.startswith("inferenceobjectives.llm-d.ai: list and watch forbidden in namespace llm (priorities)")
    del cluster.objects[OBJECTIVES.path("v1alpha2")], cluster.objects[LEGACY_OBJECTIVES.path("v1alpha2")]
    report = await check()
    assert (report.warnings, report.roles) == ((), ())


async def test_role_has_all_that_is_needed_and_is_bound_to_nobody_where_the_user_is_unknown(check, cluster):
    cluster.rights.remove(("watch", "pods"))
    cluster.answers["/apis/authentication.k8s.io/v1/selfsubjectreviews"] = (404, {"code": 404})
    report = await check()
    assert report.user == ""
    (role,) = report.roles
    assert (role["kind"], role["metadata"]) == ("Role", {"name": "endpoint-picker-pool", "namespace": "llm"})
    policies = ["inferenceobjectives", "inferencemodelrewrites"]
    kinds = [rule["resources"] for rule in role["rules"]]
    assert kinds == [["pods"], ["inferencepools"], policies, policies, ["events"]]


async def test_hardware_kinds_are_granted_by_roles_of_their_own_of_those_that_are_installed(check, cluster):
    dra = "/apis/resource.k8s.io/v1"
    cluster.install("/api/v1/nodes", f"{dra}/resourceslices", f"{dra}/resourceclaims")
    cluster.install("/apis/ome.io/v1beta1/acceleratorclasses")
    cluster.allow("acceleratorclasses")
    report = await check()
    assert (report.errors, report.warnings, report.roles) == ((), (), ())
    assert report.notes == ("3 optional kinds are forbidden; the roles below allow them",)
    role, binding, cluster_role, _ = report.hardware_roles
    assert role["metadata"] == {"name": "endpoint-picker-pool-hardware", "namespace": "llm"}
    assert [rule["resources"] for rule in role["rules"]] == [["resourceclaims"]]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "namespace": "llm", "name": "picker"}]
    assert cluster_role["metadata"] == {"name": "llm-endpoint-picker-pool-hardware"}
    kinds = [rule["resources"] for rule in cluster_role["rules"]]
    assert kinds == [["nodes"], ["acceleratorclasses"], ["resourceslices"]]


async def test_server_without_pods_is_no_cluster(check, cluster):
    del cluster.objects["/api/v1/pods"]
    assert (await check()).errors == (
        "pods: not installed (endpoints): name the API server of a cluster with pods (--kubeconfig)",
    )


async def test_server_error_is_told_as_it_is(check, cluster):
    away = (500, {"code": 500, "message": "etcd is away"})
    cluster.answers["/api/v1/namespaces/llm/pods"] = cluster.answers["/api/v1/nodes"] = away
    report = await check()
    assert report.errors == ("pods: not readable in namespace llm (endpoints): etcd is away",)
    assert report.warnings == ("pods could not be listed: etcd is away",)
    assert report.notes == ("nodes: not readable: etcd is away",)
    assert not report.would_be_ready
    assert report.pool.pods is None
    del cluster.answers["/api/v1/namespaces/llm/pods"]
    cluster.answers[POOLS.replace("/v1/", "/v1/namespaces/llm/")] = away
    assert (await check()).errors == (
        f"inferencepools.{GROUP}: not readable in namespace llm (pods and ports of the pool): etcd is away",
        "InferencePools could not be listed: etcd is away",
    )


async def test_rights_that_nobody_tells_are_named(check, cluster):
    cluster.answers["/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"] = (403, {"code": 403})
    report = await check()
    assert report.would_be_ready
    (note,) = report.notes
    assert note.startswith("not checked, because the API server does not support access reviews: get pods, get ")
    assert "create events, patch events" in note


async def test_invalid_pool_is_an_error_with_field_and_remedy(check, cluster, pool):
    cluster.objects[POOLS] = [pool(ports=(8000, 8000))]
    report = await check()
    assert report.errors == (
        "InferencePool llm/pool: spec.targetPorts[1].number is 8000, which is repeated: write each port once",
    )
    assert report.summary.startswith(
        "The picker would become ready without endpoints, and would respond with 503 until"
    )


async def test_missing_pool_is_told_with_a_few_of_those_that_are_there(check, cluster, pool):
    cluster.objects[POOLS] = [pool(f"pool-{number:02}") for number in range(15)]
    (error,) = (await check()).errors
    assert "it has pool-00, pool-01, " in error
    assert "pool-09, ...)" in error
    cluster.objects[POOLS] = []
    (error,) = (await check()).errors
    assert "it has none" in error


async def test_pods_are_counted_by_why_they_get_no_request(check, cluster, pod):
    terminating = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    cluster.objects["/api/v1/pods"] = [
        pod(name="a"),
        pod(name="b", metadata=terminating),
        pod(name="c", status={"phase": "Failed"}),
        pod(name="d", status={"podIP": ""}),
        pod(name="e", ready=False),
        pod(name="f", metadata={"annotations": {"llm-d.ai/active-ports": "9"}}),
        pod(name="g", status={"phase": "Succeeded"}, metadata=terminating),
    ]
    counts = (await check()).pool.pods
    assert counts.matching == 7
    assert (counts.ready, counts.terminating, counts.ended, counts.without_address) == (1, 1, 2, 1)
    assert (counts.not_ready, counts.without_port) == (1, 1)


async def test_many_invalid_pods_are_a_few_warnings(check, cluster, pod):
    cluster.objects["/api/v1/pods"] = [pod(name=f"p{number}", status={"phase": 1}) for number in range(30)]
    warnings = (await check()).warnings
    assert len(warnings) == 12
    assert warnings[0].startswith("Pod llm/p0 is not in effect: status.phase")
    assert warnings[10] == "20 more objects of kind Pod are not in effect"
    assert warnings[11].startswith("none of 30 pods with the labels app=vllm is ready")


@pytest.mark.parametrize(
    ("answer", "warnings"),
    [
        ((200, {"spec": {"ports": [{"port": 9002}]}}), ()),
        ((403, {"code": 403}), ()),
        ((200, "<html>"), ()),
        (
            (200, {"spec": {"ports": []}}),
            ("endpointPickerRef: Service pool-epp has no port 9002; it has none: write the port of ext_proc",),
        ),
        (
            (200, {"spec": {"ports": [{"port": 9003}]}}),
            ("endpointPickerRef: Service pool-epp has no port 9002; it has 9003: write the port of ext_proc",),
        ),
        (
            (404, {"code": 404}),
            ("endpointPickerRef: there is no Service 'pool-epp', so gateways find no picker: create it",),
        ),
    ],
)
async def test_service_of_the_picker_is_looked_at_where_that_is_allowed(check, cluster, pool, answer, warnings):
    cluster.objects[POOLS] = [pool(endpointPickerRef={"name": "pool-epp", "port": {"number": 9002}})]
    cluster.answers[SERVICE] = answer
    assert (await check()).warnings == warnings


async def test_strange_picker_reference_is_for_gateways_alone(check, cluster, pool):
    cluster.objects[POOLS] = [pool(endpointPickerRef={"name": 7})]
    assert (await check()).summary == "The picker would become ready, with 1 endpoint."
    cluster.objects[POOLS] = [pool(endpointPickerRef={"name": "x", "kind": "Other", "group": "example.com"})]
    assert (await check()).warnings == ()


async def test_objects_of_the_former_group_count_where_no_current_one_has_their_name(check, cluster):
    def objective(name):
        return {"metadata": {"name": name, "namespace": "llm"}, "spec": {"poolRef": {"name": "pool"}}}

    cluster.objects[LEGACY_OBJECTIVES.path("v1alpha2")] = [objective("old"), objective("both")]
    cluster.objects[OBJECTIVES.path("v1alpha2")] = [objective("both")]
    assert (await check()).pool.objectives == 2
    del cluster.objects[OBJECTIVES.path("v1alpha2")]
    assert (await check()).pool.objectives == 2


async def test_pods_without_a_pool(check, cluster):
    del cluster.objects[POOLS]
    report = await check(PodTarget(LabelSelector.of({"app": "vllm"}), (8000, 8001)))
    assert report.summary == "The picker would become ready, with 2 endpoints."
    assert (report.errors, report.warnings) == ((), ())


async def test_no_named_pool(check, cluster):
    report = await check(None)
    assert report.pool is None
    assert report.summary == "The picker of an InferencePool in namespace llm would become ready."


@pytest.fixture
def several(cluster, pool):
    """Two pools of a team, and one of another; one of the two has a ready pod."""

    def of_team(name, team, port, **spec):
        made = pool(name, endpointPickerRef={"name": "pickers", "port": {"number": port}}, **spec)
        made["metadata"]["labels"] = {"team": team}
        return made

    cluster.objects[POOLS] = [
        of_team("chat", "search", 9101),
        of_team("code", "search", 9102, selector={"matchLabels": {"app": "code"}}),
        of_team("other", "ads", 9101),
    ]
    (ready,) = cluster.objects[PODS.path("v1")]
    ready["metadata"]["labels"] = {"app": "vllm"}
    cluster.answers["/api/v1/namespaces/llm/services/pickers"] = (403, {"code": 403})
    return cluster


@pytest.mark.parametrize(
    "chosen", [{"names": frozenset({"code", "chat"})}, {"labels": LabelSelector.parse("team=search")}]
)
async def test_each_pool_of_a_picker_of_several_is_reported(check, several, chosen):
    report = await check(PoolChoice(namespace="llm", **chosen))
    assert report.errors == ()
    assert report.pool is None
    found = [(each.name, each.endpoints, each.picker_port) for each in report.pools]
    assert found == [("chat", 1, 9101), ("code", 0, 9102)]
    assert report.warnings == (
        "InferencePool code: no pod of namespace llm has the labels app=code: requests get 503 until one does",
    )
    assert report.summary == (
        "The picker would become ready, with 1 endpoint in 2 pools, and would respond with 503 for code until a pod is "
        "ready."
    )


async def test_pools_that_name_one_port_or_do_not_exist_are_errors(check, several):
    report = await check(PoolChoice(namespace="llm", names=frozenset({"chat", "other", "none"})))
    missing, shared = report.errors
    assert missing.startswith("InferencePool none: there is no InferencePool 'none' in namespace llm")
    assert shared == (
        "InferencePools chat, other name port 9101 in spec.endpointPickerRef.port, and only the first is served: write "
        "a different number for each"
    )


async def test_labels_of_no_pool_are_a_warning(check, several):
    report = await check(PoolChoice(namespace="llm", labels=LabelSelector.parse("team=none")))
    assert report.warnings == ("no InferencePool of namespace llm has the labels team=none",)
