# SPDX-License-Identifier: Apache-2.0
"""`epp check --cluster`: its text, its JSON and its exit codes; `tests/kube` runs it on a real API server."""

import asyncio
import json
from base64 import b64encode

import pytest
import yaml
from typer.testing import CliRunner

from epp.cli.app import application
from epp.kube.resources import REVIEWS
from tests.support.kube.scripted_api import scripted_api

POOL = {
    "metadata": {"name": "pool", "namespace": "llm"},
    "spec": {"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": [{"number": 8000}]},
}
POOLS = "/apis/inference.networking.k8s.io/v1/inferencepools"
READY = """\
  InferencePool pool: pods with app=vllm; ports 8000, http
  pods: 2 match, 1 ready, 1 not ready; endpoints: 1
  objectives: 0, rewrites: 0
"""
ROLE = """\

# All rights that the picker needs in its namespace; for kubectl apply -f -
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: endpoint-picker-pool, namespace: llm}
rules:
- apiGroups: ['']
  resources: [pods]
  verbs: [get, list, watch]
- apiGroups: [inference.networking.k8s.io]
  resources: [inferencepools]
  verbs: [get, list, watch]
- apiGroups: ['']
  resources: [events]
  verbs: [create, patch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: endpoint-picker-pool, namespace: llm}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: endpoint-picker-pool}
subjects:
- {kind: ServiceAccount, namespace: llm, name: picker}

"""


@pytest.fixture
def check(script, tmp_path):
    """Run the command against the API server of the script; give exit code and output."""
    kubeconfig = script.write_kubeconfig(tmp_path / "kubeconfig")

    async def check(*flags):
        arguments = ["check", "--cluster", f"--kubeconfig={kubeconfig}", "--pool-namespace=llm", *flags]
        result = await asyncio.to_thread(CliRunner().invoke, application(), arguments)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stdout

    return check


@pytest.fixture
def cluster(script, pod):
    """A pool of a ready pod and another one, nodes, and all rights but those on nodes."""
    script.objects[POOLS] = [POOL]
    script.objects["/api/v1/pods"] = [pod(name="a"), pod(name="b", ready=False)]
    script.install("/api/v1/nodes", "/api/v1/events", *(each.path("v1") for each in REVIEWS))
    script.allow("pods", "inferencepools")
    script.allow("events", verbs=("create", "patch"))
    script.allow(*(each.plural for each in REVIEWS), verbs=("create",))
    return script


async def test_access_and_pool_are_shown(check, cluster):
    exit_code, said = await check("--pool-name=pool")
    assert exit_code == 0
    lines = said.splitlines()
    assert lines[:2] == [
        f"cluster {cluster.url} as system:serviceaccount:llm:picker: ok",
        "  note    1 optional kind is forbidden; the roles below allow it",
    ]
    assert [" ".join(line.split()) for line in lines[2:9]] == [
        "resource where access need for",
        "pods llm allowed required endpoints",
        "inferencepools.inference.networking.k8s.io llm allowed required pods and ports of the pool",
        "events llm allowed recommended problems of the pool in kubectl describe",
        "nodes cluster no get, list, watch optional hardware",
        "tokenreviews.authentication.k8s.io cluster allowed optional access to metrics",
        "subjectaccessreviews.authorization.k8s.io cluster allowed optional access to metrics",
    ]
    assert lines[9].startswith("  not installed, and not needed: inferenceobjectives.llm-d.ai, ")
    assert READY in said
    assert "\n# Optional, for the hardware of endpoints; for kubectl apply -f -\napiVersion: " in said
    assert lines[-1] == "The picker would become ready, with 1 endpoint."


async def test_role_is_printed_where_a_right_is_missing(check, cluster):
    cluster.rights.remove(("watch", "pods"))
    exit_code, said = await check("--pool-name=pool")
    assert exit_code == 1
    head, error = said.splitlines()[:2]
    assert head.endswith(": refused, 1 error")
    assert error == "  error   pods: watch forbidden in namespace llm (endpoints): apply the Role below"
    assert ROLE in said
    assert said.endswith("\nThe picker would become ready, but would not see changes of pods.\n")


async def test_warnings_count_where_they_are_asked_for_and_rights_that_are_not_used_may_be_missing(check, cluster):
    cluster.rights.remove(("get", "pods"))
    exit_code, said = await check("--pool-name=pool", "--strict")
    assert exit_code == 0
    assert " pods " in said
    assert "allowed, without get" in said
    cluster.objects["/api/v1/pods"] = []
    exit_code, said = await check("--pool-name=pool")
    assert exit_code == 0
    assert said.splitlines()[0].endswith(": ok, 1 warning")
    assert (await check("--pool-name=pool", "--strict"))[0] == 2


async def test_programs_get_access_pool_and_roles(check, cluster):
    cluster.rights.remove(("list", "pods"))
    exit_code, said = await check("--pool-name=pool", "--output=json")
    assert exit_code == 1
    found = json.loads(said)
    assert found["files"] == []
    report = found["cluster"]
    assert report["access"][0] == {
        "resource": "pods", "name": None, "namespace": "llm", "importance": "required", "purpose": "endpoints",
        "verbs": ["get", "list", "watch"], "state": "forbidden", "version": None, "missing": ["list"], "untried": [],
        "reason": "pods is forbidden",
    }  # fmt: skip
    assert (report["server"], report["namespace"], report["would_be_ready"]) == (cluster.url, "llm", False)
    assert (report["pool"]["labels"], report["pool"]["pods"]) == ("app=vllm", None)
    assert [each["kind"] for each in report["roles"]] == ["Role", "RoleBinding"]
    assert [each["kind"] for each in report["hardware_roles"]] == ["ClusterRole", "ClusterRoleBinding"]


async def test_impossible_value_and_rights_on_a_hub_are_shown(check, cluster, accelerator_class):
    classes, clusters = "/apis/ome.io/v1beta1/acceleratorclasses", "cluster.open-cluster-management.io"
    cluster.objects[classes] = [accelerator_class("cheap", cost={"perHour": "-3"})]
    cluster.install(f"/apis/{clusters}/v1/managedclusters")
    cluster.allow("acceleratorclasses", "nodes")
    exit_code, said = await check("--pool-name=pool", "--strict")
    assert exit_code == 2
    assert "  warning cluster: AcceleratorClass cheap: spec.cost.perHour is -3" in said
    rows = [" ".join(line.split()) for line in said.splitlines()]
    assert f"managedclusters.{clusters} cluster no get, list, watch optional clusters" in rows
    assert "# Optional, for the clusters and scores of a hub; for kubectl apply -f -" in rows


NOBODY = "http://127.0.0.1:9"
CLUSTERS = "/apis/cluster.open-cluster-management.io/v1/managedclusters"


@pytest.fixture
async def hub():
    """An API server that lets its user list clusters, and not watch them."""
    async with scripted_api() as hub:
        hub.user = "system:serviceaccount:open-cluster-management:hub-reader"
        hub.install(CLUSTERS)
        hub.allow("managedclusters", verbs=("get", "list"))
        yield hub


def config_with(path, **access) -> str:
    source = {"type": "cluster-data-source", "parameters": {**access, "readCluster": False}}
    document = {
        "apiVersion": "llm-d.ai/v1",
        "kind": "EndpointPickerConfig",
        "plugins": [source, {"type": "queue-scorer"}],
    }
    path.write_text(yaml.safe_dump(document))
    return str(path)


async def test_ocm_15_rights_on_the_hubs_of_the_configuration_are_checked(check, cluster, hub, tmp_path):
    kubeconfig = hub.write_kubeconfig(tmp_path / "hub")
    config = config_with(tmp_path / "c.yaml", kubeconfig=str(kubeconfig))
    exit_code, said = await check("--pool-name=pool", "--strict", config)
    assert exit_code == 2
    problem = "managedclusters.cluster.open-cluster-management.io: watch forbidden in the cluster (clusters): apply the"
    assert f"  warning hub {hub.url}: {problem} Role below" in said
    assert f"hub {hub.url} of {kubeconfig} as {hub.user}\n" in said
    assert f"# For the hub {hub.url}: apply it there; for kubectl apply -f -\n" in said
    assert "- {kind: ServiceAccount, namespace: open-cluster-management, name: hub-reader}\n" in said
    hub.allow("managedclusters")
    exit_code, said = await check("--pool-name=pool", "--strict", "--output=json", config)
    (report,) = json.loads(said)["cluster"]["hubs"]
    states = {each["resource"]: each["state"] for each in report["access"]}
    assert states.pop("managedclusters.cluster.open-cluster-management.io") == "allowed"
    assert set(states.values()) == {"not installed"}
    assert (exit_code, report["roles"], report["warnings"]) == (0, [], [])


async def test_ocm_15_hub_that_does_not_answer_is_a_warning(check, cluster, tmp_path):
    (access := tmp_path / "hub").write_text(cluster.write_kubeconfig(access).read_text().replace(cluster.url, NOBODY))
    exit_code, said = await check("--pool-name=pool", config_with(tmp_path / "c.yaml", kubeconfig=str(access)))
    assert exit_code == 0
    assert f"  warning hub {access}: not readable: no response from the API server: {NOBODY}: " in said
    assert f"correct its address in the kubeconfig ({access})" in " ".join(said.split())


async def test_ocm_15_secret_with_access_to_a_hub_is_read_and_its_right_is_checked(check, cluster, hub, tmp_path):
    text = hub.write_kubeconfig(tmp_path / "hub").read_bytes()
    config = config_with(tmp_path / "c.yaml", secret={"name": "hub", "namespace": "ocm"})
    path = "/api/v1/namespaces/ocm/secrets/hub"
    cluster.install("/api/v1/secrets")
    cluster.answers[path] = (403, {"code": 403, "message": "secrets is forbidden"})
    _, said = await check("--pool-name=pool", config)
    assert "  warning secrets hub: list and watch forbidden in namespace ocm (access to a hub): apply the Role" in said
    assert "  warning hub Secret ocm/hub: not readable: secrets is forbidden" in said
    cluster.allow("secrets")
    cluster.answers[path] = (200, {"data": {"kubeconfig": b64encode(text).decode()}})
    _, said = await check("--pool-name=pool", config)
    assert f"hub {hub.url} of Secret ocm/hub as {hub.user}\n" in said


async def test_no_access_is_one_sentence(check, cluster, script):
    unauthorized = {"code": 401, "message": "Unauthorized"}
    script.answers["/apis/authentication.k8s.io/v1/selfsubjectreviews"] = (401, unauthorized)
    assert await check() == (1, "")
