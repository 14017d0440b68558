# SPDX-License-Identifier: Apache-2.0
"""The examples for gateways in `deploy/`: accepted by a real API server, and joined with the release beside them."""

import re

import pytest
import yaml

from tests.support.kube.charts import REPOSITORY, container, kinds, one
from tests.support.kube.client import Manifest

EXAMPLES = REPOSITORY / "deploy" / "examples"
WITH_POOL = ("agentgateway", "envoy-ai-gateway", "istio", "kgateway")
NAMES = ("envoy-gateway", *WITH_POOL)
CLASSES = {
    "agentgateway": "agentgateway",
    "envoy-ai-gateway": "eg",
    "envoy-gateway": "eg",
    "istio": "istio",
    "kgateway": "kgateway",
}


def objects_of(name: str) -> list[Manifest]:
    return [each for each in yaml.safe_load_all((EXAMPLES / name / "gateway.yaml").read_text()) if each]


def release_of(helm, name: str, namespace: str) -> list[Manifest]:
    """Return the objects of the release that the command at the top of its values installs."""
    values = EXAMPLES / name / "values.yaml"
    command = f"# helm install vllm deploy/chart --values deploy/examples/{name}/values.yaml\n"
    assert values.read_text().startswith(command)
    return helm.template(files=[values], namespace=namespace)


def test_there_is_an_example_for_each_gateway():
    assert {path.name for path in EXAMPLES.iterdir()} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
async def test_every_object_is_accepted_to_the_last_field(helm, space, name):
    for manifest in [*objects_of(name), *release_of(helm, name, space.namespace)]:
        manifest["metadata"].setdefault("namespace", space.namespace)
        await space.admin.create(manifest, dryRun="All", fieldValidation="Strict")


@pytest.mark.parametrize("name", NAMES)
def test_route_belongs_to_the_gateway(name):
    gateway, route = one(objects_of(name), "Gateway"), one(objects_of(name), "HTTPRoute")
    assert gateway["spec"]["gatewayClassName"] == CLASSES[name]
    assert [parent["name"] for parent in route["spec"]["parentRefs"]] == [gateway["metadata"]["name"]]


@pytest.mark.parametrize("name", WITH_POOL)
def test_route_leads_to_the_pool_of_the_release_and_the_pool_to_its_picker(helm, name):
    release = release_of(helm, name, "llm")
    pool = one(release, "InferencePool")
    (rule,) = one(objects_of(name), "HTTPRoute")["spec"]["rules"]
    assert rule["backendRefs"] == [
        {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": pool["metadata"]["name"]}
    ]
    picker = pool["spec"]["endpointPickerRef"]
    assert picker["name"] == one(release, "Service")["metadata"]["name"]
    # All of these call it over TLS.
    assert not any(argument.startswith("--secure-serving") for argument in container(release)["args"])


def test_istio_is_told_of_the_pickers_tls(helm):
    assert "DestinationRule" in kinds(release_of(helm, "istio", "llm"))


def test_envoy_gateway_is_joined_without_a_pool(helm):
    release, objects = release_of(helm, "envoy-gateway", "llm"), objects_of("envoy-gateway")
    assert "InferencePool" not in kinds(release)
    servers = one(objects, "Service")
    arguments = container(release)["args"]
    selector = ",".join(f"{name}={value}" for name, value in servers["spec"]["selector"].items())
    assert arguments[:4] == ["--endpoint-selector", selector, "--endpoint-target-ports", "8000"]
    assert "--secure-serving=false" in arguments
    ((backend,),) = [rule["backendRefs"] for rule in one(objects, "HTTPRoute")["spec"]["rules"]]
    assert (backend["name"], backend["port"]) == (servers["metadata"]["name"], servers["spec"]["ports"][0]["port"])
    (processor,) = one(objects, "EnvoyExtensionPolicy")["spec"]["extProc"]
    assert processor["backendRefs"] == [{"name": one(release, "Service")["metadata"]["name"], "port": 9002}]
    for policy in ("EnvoyExtensionPolicy", "BackendTrafficPolicy"):
        assert one(objects, policy)["spec"]["targetRefs"] == [
            {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "vllm"}
        ]


def test_path_in_a_comment_exists():
    for file in EXAMPLES.rglob("*.yaml"):
        comments = "\n".join(line for line in file.read_text().splitlines() if line.startswith("#"))
        for path in re.findall(r"deploy/[\w/.-]+", comments):
            assert (REPOSITORY / path).exists(), f"{file} names {path}"
