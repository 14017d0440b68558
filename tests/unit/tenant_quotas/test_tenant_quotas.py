# SPDX-License-Identifier: Apache-2.0
"""The plugin tenant-quotas: quotas of a configuration, and of GPUResourceQuota objects."""

import asyncio

import pytest
import yaml

from epp.admission.tenants import TenantQuotas, TenantQuotasParameters
from epp.framework.clock import ManualClock
from epp.framework.cluster_objects import ObjectKind, ObjectsOfKind
from epp.framework.errors import ConfigurationError
from epp.framework.input_errors import mistakes_in
from epp.framework.quotas import Quota, SharedLimit, SingleLimits, TotalLimits
from epp.framework.registry import Registry
from epp.kube.resources import needs_of_picker
from tests.support.config_files import replace
from tests.support.kube.manifests import manifest
from tests.support.waiting import until

GIB = 2**30
KIND = ObjectKind("tensor-fusion.ai", "GPUResourceQuota")


def build(**parameters) -> TenantQuotas:
    found = Registry().build("tenant-quotas", parameters, name="quotas", clock=ManualClock())
    assert isinstance(found, TenantQuotas)
    return found


def gpu_quota(name="quota", namespace="team-a", *, total=None, single=None, **metadata) -> dict:
    spec = {"total": total or {}, "single": single or {}}
    return manifest("tensor-fusion.ai/v1", "GPUResourceQuota", name, namespace, metadata, spec=spec)


def take(plugin: TenantQuotas, *documents: dict) -> None:
    """Let the plugin read these objects in the cluster, and no others."""
    objects = {found.id: found for each in documents if (found := TenantQuotas.decode(each)) is not None}
    asyncio.run(plugin.objects_changed([ObjectsOfKind(KIND, objects, frozenset(objects))]))


def of_cluster(*documents: dict, **parameters) -> TenantQuotas:
    plugin = build(gpuResourceQuotas=True, **parameters)
    take(plugin, *documents)
    return plugin


def test_tf_9_all_limits_of_a_tenant_are_read():
    entry = """
tenant: team-a
single: {promptTokens: 8000, outputTokens: 1000, acceleratorMemory: 10Gi, tflops: 100, devices: 2, dollars: 0.25}
total:
  {concurrentRequests: 50, tokensInFlight: 100000, tokensPerMinute: 60000, acceleratorMemory: 40, tflops: 500.5,
   deviceSecondsPerDay: 3600, dollarsPerDay: 12.5}
whenExceeded: Refuse
alertThresholdPercent: 80
"""
    plugin = build(quotas=[yaml.safe_load(entry)], requestsPerEndpoint=128)
    assert plugin.quota_of("team-a") == Quota(
        single=SingleLimits(
            prompt_tokens=8000, output_tokens=1000, accelerator_bytes=10 * GIB, tflops=100, devices=2, dollars=0.25
        ),
        total=TotalLimits(
            requests=50,
            tokens=100_000,
            tokens_per_minute=60_000,
            accelerator_bytes=40 * GIB,
            tflops=500.5,
            device_seconds_per_day=3600,
            dollars_per_day=12.5,
        ),
        waits=False,
        alert_percent=80,
        origin="quotas of quotas",
    )
    assert plugin.requests_per_endpoint == 128


def test_tf_9_tenant_without_a_quota_may_take_whatever_it_wants():
    assert build().quota_of("anybody") is None
    assert build(quotas=[{"tenant": "team-a"}]).quota_of("team-b") is None


def test_tf_9_default_is_for_tenants_without_an_entry_and_an_empty_entry_is_one():
    plugin = build(quotas=[{"tenant": "vip"}], default={"total": {"concurrentRequests": 3}})
    assert plugin.quota_of("anybody") == Quota(total=TotalLimits(requests=3), origin="default of quotas")
    assert plugin.quota_of("vip") == Quota(origin="quotas of quotas")
    assert (list(plugin.named_quotas), plugin.default_quota) == (["vip"], plugin.quota_of("anybody"))


@pytest.mark.parametrize("nothing", [0, 0.0, "0", "0Gi"])
def test_tf_9_zero_is_no_limit(nothing):
    quota = build(default={"total": {"concurrentRequests": 0, "acceleratorMemory": nothing}}).quota_of("a")
    assert quota.total == TotalLimits()


@pytest.mark.parametrize(
    ("default", "message"),
    [
        ({"single": {"promptTokens": -1}}, "promptTokens is -1"),
        ({"single": {"dollars": float("nan")}}, "dollars is nan"),
        ({"single": {"devices": 1.5}}, "devices is 1.5; write a whole number"),
        ({"single": {"tokens": 1}}, "unknown key"),
        ({"total": {"concurrentRequests": 10**7}}, "concurrentRequests is 10000000; it must be between 0 and 1000000"),
        ({"total": {"acceleratorMemory": "-1Gi"}}, "acceleratorMemory is '-1Gi': write a quantity such as 40Gi"),
        ({"total": {"acceleratorMemory": "40 GB"}}, "acceleratorMemory is '40 GB': write a quantity such as 40Gi"),
        ({"total": {"acceleratorMemory": 2**60}}, "write a quantity such as 40Gi"),
        ({"total": {"acceleratorMemory": float("inf")}}, "write a quantity such as 40Gi"),
        ({"alertThresholdPercent": 0}, "alertThresholdPercent is 0; it must be above 0 and at most 100"),
        ({"alertThresholdPercent": 101}, "alertThresholdPercent is 101"),
        ({"whenExceeded": "Queue"}, "'Queue' is not known; use 'Wait', 'Refuse'"),
        ({"tenant": "a"}, "unknown key"),
    ],
)
def test_tf_9_limit_that_makes_no_sense_is_refused_by_name(default, message):
    with pytest.raises(ConfigurationError) as caught:
        build(default=default)
    assert message in str(caught.value)


def test_tf_9_two_entries_for_a_tenant_are_refused_with_the_place():
    (mistake, *_) = mistakes_in(TenantQuotasParameters, {"quotas": [{"tenant": "a"}, {"tenant": "b"}, {"tenant": "a"}]})
    assert mistake.path == ("quotas", 0, "tenant")
    assert str(mistake) == "quotas[0].tenant is 'a', the same as in another entry: keep one of them"


@pytest.mark.parametrize("name", ["", "x" * 254])
def test_tf_9_tenant_without_a_name_is_refused(name):
    with pytest.raises(ConfigurationError, match="tenant"):
        build(quotas=[{"tenant": name}])


def test_tf_9_quota_of_a_namespace_maps_to_limits_of_its_tenant():
    requests, limits = {"tflops": "500", "vram": "200Gi"}, {"tflops": "800", "vram": "100Gi"}
    total = {"requests": requests, "limits": limits, "maxWorkers": 20, "alertThresholdPercent": 90}
    single = {"maxRequests": {"tflops": "200", "vram": "80Gi"}, "maxLimits": {"vram": "90Gi"}, "maxGPUCount": 4}
    plugin = of_cluster(gpu_quota(total=total, single=single))
    assert plugin.quota_of("team-a") == Quota(
        single=SingleLimits(accelerator_bytes=80 * GIB, tflops=200, devices=4),
        total=TotalLimits(requests=20, accelerator_bytes=100 * GIB, tflops=500),
        alert_percent=90,
        origin="GPUResourceQuota team-a/quota",
    )
    assert plugin.quota_of("team-b") is None


def test_tf_9_zero_in_an_object_is_not_set_and_one_without_limits_leaves_the_default():
    plugin = of_cluster(
        gpu_quota(total={"requests": {"tflops": "0"}, "limits": {"tflops": "7"}, "maxWorkers": 0}),
        gpu_quota(namespace="team-b", total={"requests": {"compute": "50"}, "maxWorkers": 0}),
        default={"total": {"concurrentRequests": 3}},
    )
    of_a, of_b = plugin.quota_of("team-a"), plugin.quota_of("team-b")
    assert of_a.total == TotalLimits(tflops=7)
    assert (of_a.alert_percent, of_b.origin) == (95, "default of quotas")


def test_tf_9_several_objects_of_a_namespace_make_the_smallest_of_each_limit():
    plugin = of_cluster(
        gpu_quota("one", total={"maxWorkers": 20, "limits": {"vram": "40Gi"}, "alertThresholdPercent": 80}),
        gpu_quota("two", total={"maxWorkers": 30, "limits": {"vram": "30Gi"}}, single={"maxGPUCount": 2}),
    )
    quota = plugin.quota_of("team-a")
    assert quota.total == TotalLimits(requests=20, accelerator_bytes=30 * GIB)
    assert quota.single == SingleLimits(devices=2)
    assert (quota.alert_percent, quota.origin) == (80, "GPUResourceQuota team-a/one, team-a/two")


def test_tf_9_entry_of_the_configuration_takes_the_place_of_objects_as_a_whole():
    plugin = of_cluster(
        gpu_quota(total={"maxWorkers": 20}, single={"maxGPUCount": 2}),
        quotas=[{"tenant": "team-a", "total": {"concurrentRequests": 100}}],
    )
    assert plugin.quota_of("team-a") == Quota(total=TotalLimits(requests=100), origin="quotas of quotas")


def test_tf_1_objects_do_not_count_unless_the_configuration_says_so():
    plugin = build()
    assert plugin.kinds == ()
    assert not plugin.can_read(KIND)
    reading = build(gpuResourceQuotas=True)
    assert reading.kinds == (KIND,)
    assert reading.can_read(KIND)
    assert not reading.can_read(ObjectKind("", "Pod"))


def test_tf_1_rights_to_read_the_objects_of_all_namespaces_are_among_those_of_the_picker():
    (need,) = [each for each in needs_of_picker("llm", pool_group=None) if each.resource.kind == KIND.kind]
    assert (need.namespace, need.importance.value) == ("", "optional")


def test_tf_1_object_that_goes_takes_its_quota_along_and_one_being_deleted_does_not_count():
    plugin = of_cluster(gpu_quota(total={"maxWorkers": 20}))
    take(plugin, gpu_quota(total={"maxWorkers": 20}, deletionTimestamp="2026-11-22T00:00:00Z"))
    assert plugin.quota_of("team-a") is None
    take(plugin, gpu_quota(total={"maxWorkers": 30}))
    assert plugin.quota_of("team-a") is not None
    take(plugin)
    assert plugin.quota_of("team-a") is None


def test_tf_1_impossible_value_of_an_object_is_left_out_and_said():
    plugin = of_cluster(gpu_quota(total={"maxWorkers": -5, "requests": {"tflops": "70"}}))
    quota = plugin.quota_of("team-a")
    assert quota.total == TotalLimits(tflops=70)
    (ignored,) = plugin.inputs.ignored
    assert "spec.total.maxWorkers is -5" in str(ignored)


@pytest.fixture
def files(tmp_path):
    """Write objects into a file that a plugin reads."""
    path = tmp_path / "quotas.yaml"

    def write(*documents: dict | str):
        replace(path, "---\n".join(one if isinstance(one, str) else yaml.safe_dump(one) for one in documents))
        return str(path)

    return write


def test_tf_1_objects_in_files_count_and_their_last_good_version_stays(files):
    plugin = build(gpuResourceQuotas=True, paths=[files(gpu_quota(total={"maxWorkers": 20}))])
    assert plugin.quota_of("team-a") is not None
    files(gpu_quota(total={"maxWorkers": "many"}))
    assert asyncio.run(plugin.check())
    quota = plugin.quota_of("team-a")
    assert quota.total.requests == 20
    (problem,) = plugin.inputs.problems
    assert "spec.total.maxWorkers" in problem.reason
    files(gpu_quota(total={"maxWorkers": 5}))
    assert asyncio.run(plugin.check())
    quota = plugin.quota_of("team-a")
    assert (quota.total.requests, plugin.inputs.problems) == (5, ())


def test_tf_1_files_of_objects_flag_are_read_where_objects_count(files):
    path = files(gpu_quota(total={"maxWorkers": 20}))
    plugin, other = build(gpuResourceQuotas=True), build()
    for each in (plugin, other):
        each.read_files([path])
    assert plugin.quota_of("team-a") is not None
    assert other.quota_of("team-a") is None


def test_tf_1_object_in_a_file_counts_before_that_of_the_cluster(files):
    path = files(gpu_quota(total={"maxWorkers": 20}))
    plugin = of_cluster(gpu_quota(total={"maxWorkers": 10}), paths=[path])
    quota = plugin.quota_of("team-a")
    assert quota.total.requests == 20


def test_files_without_objects_that_count_are_refused():
    with pytest.raises(ConfigurationError, match="without gpuResourceQuotas or acceleratorMemoryQuotas"):
        build(paths=["quotas.yaml"])


async def test_tf_1_new_version_of_a_file_is_followed(files):
    plugin = build(gpuResourceQuotas=True, paths=[files(gpu_quota(total={"maxWorkers": 20}))])
    following = asyncio.create_task(plugin.follow(lambda _: None))
    try:
        files(gpu_quota(total={"maxWorkers": 7}))
        await until(lambda: quota_is(plugin, 7), "the new version is in effect", seconds=60)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


def quota_is(plugin, requests):
    quota = plugin.quota_of("team-a")
    return quota is not None and quota.total.requests == requests


def test_tf_9_what_quotas_depend_on_is_known():
    assert not build(default={"total": {"concurrentRequests": 3}}).limits_hardware
    assert build(default={"total": {"deviceSecondsPerDay": 3}}).limits_hardware
    dollars = build(quotas=[{"tenant": "a", "single": {"dollars": 1}}])
    assert (dollars.limits_hardware, dollars.limits_dollars) == (False, True)
    assert dollars.without_prices == "its limits in dollars have no effect"
    assert build().without_prices == ""


def resource_quota(size: str, namespace="team-a", name="slices", **spec) -> dict:
    hard = {"requests.instaslice.redhat.com/accelerator-memory-quota": size, "pods": "9"}
    return manifest("v1", "ResourceQuota", name, namespace, spec={"hard": hard, **spec})


def cluster_queue(name: str, cohort: str = "", resource="gpu.das.openshift.io/mem", selector=None, **quota) -> dict:
    flavor = {"name": "slices", "resources": [{"name": "cpu", "nominalQuota": 9}, {"name": resource, **quota}]}
    spec = {"resourceGroups": [{"coveredResources": ["cpu", resource], "flavors": [flavor]}]}
    if cohort:
        spec["cohortName"] = cohort
    if selector is not None:
        spec["namespaceSelector"] = selector
    return manifest("kueue.x-k8s.io/v1beta2", "ClusterQueue", name, spec=spec)


def local_queue(of: str, namespace="team-a") -> dict:
    return manifest("kueue.x-k8s.io/v1beta2", "LocalQueue", f"to-{of}", namespace, spec={"clusterQueue": of})


def test_is_16_resource_quota_limits_the_slice_memory_of_its_namespace(files):
    plugin = build(acceleratorMemoryQuotas=True, paths=[files(resource_quota("45Gi"))])
    assert plugin.quota_of("team-a") == Quota(
        single=SingleLimits(accelerator_bytes=45 * GIB),
        total=TotalLimits(accelerator_bytes=45 * GIB),
        origin="ResourceQuota team-a/slices",
    )
    assert plugin.limits_hardware
    assert plugin.quota_of("team-b") is None


def test_is_16_quota_of_zero_lets_no_request_through_and_one_with_scopes_is_for_other_pods(files):
    none = resource_quota("0")
    scoped = resource_quota("5Gi", namespace="team-b", scopes=["BestEffort"])
    plugin = build(acceleratorMemoryQuotas=True, paths=[files(none, scoped)])
    quota = plugin.quota_of("team-a")
    assert quota.single.accelerator_bytes == 1
    assert plugin.quota_of("team-b") is None


def test_is_16_cluster_queue_limits_the_namespaces_of_its_local_queues(files):
    old = cluster_queue("shared", nominalQuota="80") | {"apiVersion": "kueue.x-k8s.io/v1beta1"}
    of_b = local_queue("shared", "team-b")
    plugin = build(acceleratorMemoryQuotas=True, paths=[files(old, local_queue("shared"), of_b)])
    quotas = [plugin.quota_of(team) for team in ("team-a", "team-b", "team-c")]
    assert [quota and quota.total.accelerator_bytes for quota in quotas] == [80 * GIB, 80 * GIB, None]
    assert quotas[0].origin == "ClusterQueue shared (its quota is shared with 1 other namespaces)"
    assert quotas[0].shared == quotas[1].shared == (SharedLimit(frozenset({"team-a", "team-b"}), 80 * GIB),)


def shared_limits(plugin, *teams: str) -> set[tuple[str, float]]:
    """Return the tenants and GiB of all shared limits of these teams."""
    found = {each for team in teams for each in plugin.quota_of(team).shared}
    return {("".join(sorted(name[-1] for name in each.tenants)), each.accelerator_bytes / GIB) for each in found}


def test_is_16_namespaces_with_several_queues_share_each_of_them_and_all(files):
    queues = [cluster_queue(name, nominalQuota=size) for name, size in (("q1", "10"), ("q2", "20"))]
    locals_ = [local_queue("q1"), local_queue("q1", "team-b"), local_queue("q1", "team-c"), local_queue("q2", "team-c")]
    plugin = build(acceleratorMemoryQuotas=True, paths=[files(*queues, *locals_)])
    assert shared_limits(plugin, "team-a", "team-c") == {("ab", 10), ("abc", 30)}
    assert [plugin.quota_of(f"team-{each}").total.accelerator_bytes for each in "ac"] == [10 * GIB, 30 * GIB]


def test_is_16_namespaces_of_a_cohort_do_not_borrow_the_same_quota_twice(files):
    queues = [cluster_queue(name, "research", nominalQuota=size) for name, size in (("own", "40"), ("other", "30"))]
    locals_ = [local_queue("own"), local_queue("other", "team-b")]
    plugin = build(acceleratorMemoryQuotas=True, paths=[files(*queues, *locals_)])
    assert shared_limits(plugin, "team-a", "team-b") == {("ab", 70)}
    assert plugin.quota_of("team-b").total.accelerator_bytes == 70 * GIB


def namespace(name: str, **labels) -> dict:
    return manifest("v1", "Namespace", name, metadata={"labels": labels})


def test_is_16_queue_limits_the_namespaces_that_it_selects(files):
    queue = cluster_queue("shared", nominalQuota="80", selector={"matchLabels": {"tier": "gold"}})
    locals_ = [local_queue("shared", f"team-{each}") for each in "abc"]
    known = [namespace("team-a", tier="gold"), namespace("team-b", tier="iron"), namespace("team-c", tier="gold")]
    plugin = build(acceleratorMemoryQuotas=True, paths=[files(queue, *locals_, *known)])
    assert shared_limits(plugin, "team-a") == {("ac", 80)}
    assert plugin.quota_of("team-b") is None
    (remark,) = plugin.inputs.remarks
    assert remark.startswith("LocalQueue team-b/to-shared has no effect: namespaceSelector of ClusterQueue shared does")


def test_is_16_queue_limits_namespaces_with_unknown_labels_and_says_how_to_let_it_know(files):
    queue = cluster_queue("shared", nominalQuota="80", selector={"matchLabels": {"tier": "gold"}})
    plugin = build(acceleratorMemoryQuotas=True, paths=[files(queue, local_queue("shared"))])
    assert plugin.quota_of("team-a").total.accelerator_bytes == 80 * GIB
    (remark,) = plugin.inputs.remarks
    assert "the labels of namespace team-a are unknown, so its quota applies; allow the picker to list and" in remark


@pytest.mark.parametrize(("values", "is_limited"), [(["team-a"], True), (["team-b"], False)])
def test_is_16_names_of_namespaces_are_known_without_their_labels(files, values, is_limited):
    test = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": values}
    queue = cluster_queue("shared", nominalQuota="80", selector={"matchExpressions": [test]})
    plugin = build(acceleratorMemoryQuotas=True, paths=[files(queue, local_queue("shared"))])
    assert (plugin.quota_of("team-a") is not None) == is_limited
    assert len(plugin.inputs.remarks) == (not is_limited)


@pytest.mark.parametrize(
    ("own", "other", "gib"),
    [
        ({}, {}, 40 + 30),
        ({"borrowingLimit": "10"}, {}, 40 + 10),
        ({"borrowingLimit": "50"}, {"lendingLimit": "5"}, 40 + 5),
        ({"borrowingLimit": "0"}, {}, 40),
    ],
)
def test_is_16_cluster_queue_may_borrow_from_its_cohort(files, own, other, gib):
    queues = [
        cluster_queue("own", "research", nominalQuota="40Gi", **own),
        cluster_queue("other", "research", nominalQuota="30Gi", **other),
        cluster_queue("foreign", "sales", nominalQuota="99Gi"),
    ]
    plugin = build(acceleratorMemoryQuotas=True, paths=[files(*queues, local_queue("own"))])
    quota = plugin.quota_of("team-a")
    assert quota.total.accelerator_bytes == gib * GIB


def test_is_16_smallest_limit_of_all_objects_counts(files):
    objects = [
        resource_quota("45Gi"),
        cluster_queue("one", nominalQuota="20Gi"),
        local_queue("one"),
        gpu_quota(total={"maxWorkers": 7, "limits": {"vram": "100Gi"}, "alertThresholdPercent": 80}),
    ]
    plugin = build(acceleratorMemoryQuotas=True, gpuResourceQuotas=True, paths=[files(*objects)])
    quota = plugin.quota_of("team-a")
    assert quota == Quota(
        single=SingleLimits(accelerator_bytes=20 * GIB),
        total=TotalLimits(requests=7, accelerator_bytes=20 * GIB),
        alert_percent=80,
        origin="GPUResourceQuota team-a/quota, ResourceQuota team-a/slices, ClusterQueue one",
    )


def test_is_16_only_the_kinds_that_the_configuration_names_are_read(files):
    plugin = build(gpuResourceQuotas=True, paths=[files(resource_quota("45Gi"))])
    assert plugin.quota_of("team-a") is None
    kinds = build(acceleratorMemoryQuotas=True).kinds
    assert [each.kind for each in kinds] == ["Namespace", "ResourceQuota", "ClusterQueue", "LocalQueue"]
    rights = {each.resource.kind: each.namespace for each in needs_of_picker("llm", pool_group=None)}
    assert [rights[each.kind] for each in kinds] == ["", "", "", ""]
