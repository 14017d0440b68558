# SPDX-License-Identifier: Apache-2.0
"""The objects of the Helm chart in a real API server: each is accepted as it is, and a release comes and goes."""

import asyncio
from pathlib import Path

import pytest
import yaml

from epp.kube.resources import Importance, needs_of_hub, needs_of_metrics, needs_of_picker
from tests.support.kube import manifests as write
from tests.support.kube.charts import (
    CHART,
    FLAVOURS,
    NAMESPACE,
    RELEASE,
    SERVERS,
    UNGUARDED,
    Helm,
    container,
    kinds,
    one,
)
from tests.support.kube.client import Manifest, RefusedError
from tests.support.kube.space import Space

NAME = f"{RELEASE}-epp"
READ = frozenset({"get", "list", "watch"})
NEEDS: dict[str, frozenset[str]] = {
    "pods": READ,
    "inferencepools.inference.networking.k8s.io": READ,
    "inferenceobjectives.llm-d.ai": READ,
    "inferencemodelrewrites.llm-d.ai": READ,
    "inferenceobjectives.inference.networking.x-k8s.io": READ,
    "inferencemodelrewrites.inference.networking.x-k8s.io": READ,
    "events": frozenset({"create", "patch"}),
}
"""What the picker does in its namespace, and may do: no less, and no more."""
OF_THE_POOL = ("inferencepools.inference.networking.k8s.io", "events")
NEEDS_TO_LEAD = {"leases.coordination.k8s.io": frozenset({"create", "get", "update"})}
NEEDS_OF_HARDWARE = {
    "configmaps": READ,
    "resourceclaims.resource.k8s.io": READ,
    "variantautoscalings.llmd.ai": READ,
    "inferenceservices.ome.io": READ,
    "servingruntimes.ome.io": READ,
}
NEEDS_IN_THE_CLUSTER = {
    "nodes": READ,
    "acceleratorclasses.ome.io": READ,
    "clusterservingruntimes.ome.io": READ,
    "instaslices.inference.redhat.com": READ,
    "nodeaccelerators.inference.redhat.com": READ,
    "allocationclaims.inference.redhat.com": READ,
    "gpus.tensor-fusion.ai": READ,
    "gpunodes.tensor-fusion.ai": READ,
    "gpupools.tensor-fusion.ai": READ,
    "schedulingconfigtemplates.tensor-fusion.ai": READ,
    "gpuresourcequotas.tensor-fusion.ai": READ,
    "resourceslices.resource.k8s.io": READ,
    "deviceclasses.resource.k8s.io": READ,
    "devicetaintrules.resource.k8s.io": READ,
    "resourceflavors.kueue.x-k8s.io": READ,
    "namespaces": READ,
    "resourcequotas": READ,
    "clusterqueues.kueue.x-k8s.io": READ,
    "localqueues.kueue.x-k8s.io": READ,
}


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_every_object_is_accepted_to_the_last_field(helm, space, flavour):
    objects = helm.template(*FLAVOURS[flavour], namespace=space.namespace)
    assert len(objects) >= 6
    for manifest in objects:
        accepted = await space.admin.create(manifest, dryRun="All", fieldValidation="Strict")
        assert accepted["kind"] == manifest["kind"]


async def test_field_that_a_kind_does_not_have_is_refused(helm, space):
    """The check above sees what a server would drop silently."""
    for manifest in helm.template(*FLAVOURS["istio"], namespace=space.namespace):
        if manifest["kind"] in {"InferencePool", "Deployment", "HTTPRoute", "DestinationRule"}:
            manifest["spec"]["unheardOf"] = True
            with pytest.raises(RefusedError, match=r"unknown field.*unheardOf"):
                await space.admin.create(manifest, dryRun="All", fieldValidation="Strict")


def permissions(role: Manifest) -> dict[str, frozenset[str]]:
    """Return the verbs of each `resource.group`."""
    found: dict[str, frozenset[str]] = {}
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                title = f"{resource}.{group}" if group else resource
                found[title] = found.get(title, frozenset()) | set(rule["verbs"])
    return found


def test_role_has_what_the_picker_does_and_nothing_more(helm):
    assert permissions(one(helm.template(), "Role")) == NEEDS
    elected = one(helm.template(*FLAVOURS["leader-election"]), "Role")
    assert permissions(elected) == NEEDS | NEEDS_TO_LEAD
    (lease,) = [rule for rule in elected["rules"] if rule.get("resourceNames")]
    assert lease["resourceNames"] == [f"epp-{NAMESPACE}-{RELEASE}.llm-d.ai"]
    assert "create" not in lease["verbs"]  # cannot be limited to a name
    without_pool = permissions(one(helm.template(*FLAVOURS["without-pool"]), "Role"))
    assert without_pool == {name: verbs for name, verbs in NEEDS.items() if name not in OF_THE_POOL}


@pytest.mark.parametrize("flavour", ["gateway", "without-pool", "leader-election", "accelerators"])
def test_roles_have_what_the_program_lists_as_its_needs(helm, flavour):
    group = None if flavour == "without-pool" else "inference.networking.k8s.io"
    lease = f"epp-{NAMESPACE}-{RELEASE}.llm-d.ai" if flavour == "leader-election" else None
    used: dict[str, frozenset[str]] = {}
    for need in needs_of_picker(NAMESPACE, pool_group=group, lease=lease):
        if flavour == "accelerators" or need.importance is not Importance.OPTIONAL:
            used[need.resource.title] = used.get(need.resource.title, frozenset()) | set(need.verbs)
    objects = helm.template(*FLAVOURS[flavour])
    granted = permissions(one(objects, "Role"))
    if flavour == "accelerators":
        granted |= permissions(one(objects, "ClusterRole", f"{NAMESPACE}-{NAME}"))
    assert granted == used


def test_role_of_a_guarded_page_has_what_the_program_lists_as_its_needs(helm):
    objects = helm.template(*FLAVOURS["guarded"])
    role = one(objects, "ClusterRole", f"{NAMESPACE}-{NAME}-metrics")
    assert permissions(role) == {need.resource.title: frozenset({"create"}) for need in needs_of_metrics()}


@pytest.mark.parametrize(
    ("flavour", "kind", "secret"),
    [
        ("guarded", "ServiceMonitor", f"{NAME}-metrics-reader"),
        ("guarded-pods", "PodMonitor", "scraper"),
        ("guarded-by-google", "PodMonitoring", f"{NAME}-metrics-reader"),
    ],
)
def test_prometheus_sends_the_token_of_a_secret_where_metrics_are_guarded(helm, flavour, kind, secret):
    objects = helm.template(*FLAVOURS[flavour])
    spec = one(objects, kind)["spec"]
    (page,) = spec.get("endpoints") or spec["podMetricsEndpoints"]
    credentials = page["authorization"]["credentials"]
    assert credentials.get("secret", credentials) == {"name": secret, "key": "token"}
    made = [each for each in objects if each["kind"] == "Secret"]
    assert [each["metadata"]["name"] for each in made] == ([] if secret == "scraper" else [secret])  # noqa: S105  its name


def test_role_of_a_hub_has_what_the_program_lists_as_its_needs(helm):
    role = one(helm.template(*FLAVOURS["clusters"], UNGUARDED), "ClusterRole")
    assert permissions(role) == {need.resource.title: READ for need in needs_of_hub()}
    both = helm.template(*FLAVOURS["clusters"], *FLAVOURS["accelerators"], UNGUARDED)
    names = [each["metadata"]["name"] for each in both if each["kind"] == "ClusterRole"]
    assert names == [f"{NAMESPACE}-{NAME}", f"{NAMESPACE}-{NAME}-clusters"]


def test_objects_of_the_whole_cluster_are_read_only_where_that_is_asked_for(helm):
    assert not {"ClusterRole", "ClusterRoleBinding"} & kinds(helm.template(UNGUARDED)).keys()
    objects = helm.template(*FLAVOURS["accelerators"], UNGUARDED)
    assert permissions(one(objects, "Role")) == NEEDS | NEEDS_OF_HARDWARE
    assert permissions(one(objects, "ClusterRole")) == NEEDS_IN_THE_CLUSTER
    assert one(objects, "ClusterRole")["metadata"]["name"] == f"{NAMESPACE}-{NAME}"  # of no other release
    subjects = [each["subjects"] for each in objects if each["kind"].endswith("Binding")]
    account = [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}]
    assert subjects == [account, account]


class Release:
    """A release of the chart in a namespace of the cluster."""

    def __init__(self, helm: Helm, space: Space, directory: Path) -> None:
        self.space = space
        self._helm = helm
        self._environment = {
            "HOME": str(directory),
            "KUBECONFIG": str(space.cluster.kubeconfig(directory / "kubeconfig", namespace=space.namespace)),
        }

    async def run(self, *arguments: str) -> str:
        ended = await asyncio.to_thread(self._helm.run, *arguments, **self._environment)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    async def upgrade(self, *values: str) -> str:
        settings = [word for value in (SERVERS, *values) for word in ("--set", value)]
        return await self.run("upgrade", "--install", RELEASE, str(CHART), *settings)

    async def get(self, api_version: str, kind: str, name: str = NAME) -> Manifest:
        return await self.space.admin.get(write.manifest(api_version, kind, name, self.space.namespace))


@pytest.fixture
def release(helm, space, tmp_path) -> Release:
    return Release(helm, space, tmp_path)


async def test_release_is_installed_changed_and_removed(release):
    await release.upgrade(*FLAVOURS["objectives"])
    pool = await release.get("inference.networking.k8s.io/v1", "InferencePool", RELEASE)
    assert pool["spec"]["endpointPickerRef"]["name"] == NAME
    assert pool["spec"]["appProtocol"] == "http"  # the server's default
    batch = await release.get("llm-d.ai/v1alpha2", "InferenceObjective", "batch")
    assert batch["spec"] == {
        "priority": -1,
        "poolRef": {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": RELEASE},
    }
    deployment = await release.get("apps/v1", "Deployment")

    await release.upgrade(*FLAVOURS["objectives"], "router.modelServers.type=sglang")
    changed = await release.get("v1", "ConfigMap")
    assert "defaultEngine: sglang" in changed["data"]["default-plugins.yaml"]
    same = await release.get("apps/v1", "Deployment")
    assert same["metadata"]["generation"] == deployment["metadata"]["generation"]  # the picker reads it anew

    await release.run("uninstall", RELEASE)
    for api, kind, name in (
        ("apps/v1", "Deployment", NAME),
        ("inference.networking.k8s.io/v1", "InferencePool", RELEASE),
        ("rbac.authorization.k8s.io/v1", "Role", NAME),
    ):
        with pytest.raises(RefusedError, match="404"):
            await release.get(api, kind, name)


async def test_flavour_of_a_release_may_change(release):
    await release.upgrade()
    for flavour in ("sidecar", "proxy-service", "leader-election", "autoscaled"):
        await release.upgrade(*FLAVOURS[flavour])
    scaler = await release.get("autoscaling/v2", "HorizontalPodAutoscaler")
    assert scaler["spec"]["scaleTargetRef"]["name"] == NAME


@pytest.mark.parametrize(
    ("flavour", "said"),
    [
        ("gateway", "kubectl rollout status --namespace {} deployment/vllm-epp"),
        ("gateway", "backendRefs:"),
        ("leader-election", "kubectl get lease --namespace {0} epp-{0}-vllm.llm-d.ai"),
        ("sidecar", "kubectl port-forward --namespace {} service/vllm-epp 8081 &"),
        ("proxy-service", "kubectl port-forward --namespace {} service/vllm-epp-proxy 8081 &"),
        ("istio", "kubectl get httproute --namespace {} vllm"),
        ("without-pool", "ext_proc at vllm-epp.{}:9002"),
    ],
)
async def test_notes_say_what_to_do_next(release, flavour, said):
    settings = [word for value in (SERVERS, *FLAVOURS[flavour]) for word in ("--set", value)]
    printed = await release.run("install", RELEASE, str(CHART), "--dry-run=server", *settings)
    assert said.format(release.space.namespace) in printed.partition("NOTES:")[2]


async def test_account_of_a_release_may_do_what_its_role_says(release):
    """RBAC as the API server decides it: SubjectAccessReviews for the service account of an installed release."""
    await release.upgrade(*FLAVOURS["leader-election"])
    namespace = release.space.namespace
    lease = f"epp-{namespace}-{RELEASE}.llm-d.ai"
    asked = {
        ("list", "", "pods", ""): True,
        ("watch", "inference.networking.k8s.io", "inferencepools", ""): True,
        ("update", "coordination.k8s.io", "leases", lease): True,
        ("update", "coordination.k8s.io", "leases", "another"): False,
        ("delete", "", "pods", ""): False,
        ("list", "", "secrets", ""): False,
        ("list", "", "nodes", ""): False,
        ("update", "inference.networking.k8s.io", "inferencepools", ""): False,
    }
    for (verb, group, resource, name), allowed in asked.items():
        attributes = {"namespace": namespace, "verb": verb, "group": group, "resource": resource, "name": name}
        spec = {"user": f"system:serviceaccount:{namespace}:{NAME}", "resourceAttributes": attributes}
        asking = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        review = await release.space.admin.request("POST", path, asking)
        assert review["status"]["allowed"] is allowed, attributes


async def test_config_map_of_a_release_is_what_is_mounted(release):
    await release.upgrade("router.epp.pluginsConfigFile=payload-agnostic.yaml")
    stored = await release.get("v1", "ConfigMap")
    deployment = await release.get("apps/v1", "Deployment")
    named = container([deployment])["args"]
    assert named[named.index("--config-file") + 1] == "/config/payload-agnostic.yaml"
    assert yaml.safe_load(stored["data"]["payload-agnostic.yaml"])["kind"] == "EndpointPickerConfig"
