# SPDX-License-Identifier: Apache-2.0
"""The plain manifests in `deploy/`: the chart's, and accepted by a real API server as their first lines say."""

import asyncio
import importlib.util
import re
import subprocess

import pytest
import yaml

from tests.support.kube.charts import FLAVOURS, REPOSITORY, container, envoy_of, kinds, one

_spec = importlib.util.spec_from_file_location("manifests", REPOSITORY / "tools" / "manifests.py")
manifests = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(manifests)

DIRECTORY = REPOSITORY / "deploy" / "manifests"


def test_directory_has_these_files_and_no_others():
    assert {path.stem for path in DIRECTORY.iterdir()} == {*manifests.VARIANTS, manifests.HUB_READER, "valkey"}


def test_ocm_15_rights_on_a_hub_are_those_that_the_picker_uses():
    if (DIRECTORY / "hub-reader.yaml").read_text() != manifests.hub_reader():
        pytest.fail("deploy/manifests/hub-reader.yaml is out of date: run `make manifests`", pytrace=False)


@pytest.mark.parametrize("name", manifests.VARIANTS)
def test_file_is_what_the_chart_says(programs, name):
    if (DIRECTORY / f"{name}.yaml").read_text() != manifests.manifest(programs / "helm", name):
        pytest.fail(f"deploy/manifests/{name}.yaml is out of date: run `make manifests`", pytrace=False)


@pytest.mark.parametrize("name", manifests.VARIANTS)
async def test_file_is_accepted_with_the_command_at_its_top(space, name):
    text = (DIRECTORY / f"{name}.yaml").read_text()
    (command,) = re.findall(r"^#   (sed .*) \| kubectl apply -f -$", text, re.MULTILINE)
    command = command.replace("NAMESPACE", space.namespace).replace("LABEL", "chat")
    text = await asyncio.to_thread(subprocess.check_output, ["sh", "-c", command], cwd=DIRECTORY, text=True)
    objects = [document for document in yaml.safe_load_all(text) if document]
    for manifest in objects:
        created = await space.apply(manifest)
        assert created["metadata"].get("namespace", space.namespace) == space.namespace
    for manifest in objects:
        await space.admin.apply(manifest, dryRun="All", fieldValidation="Strict")
    arguments = container(objects, deployment="my-pool-epp")["args"]
    if "InferencePool" in kinds(objects):
        assert one(objects, "InferencePool")["spec"]["selector"] == {"matchLabels": {"app": "chat"}}
        assert arguments[:4] == ["--pool-name", "my-pool", "--pool-namespace", space.namespace]
    else:
        assert arguments[:2] == ["--endpoint-selector", "app=chat"]
    assert "my-model-server" not in text
    assert manifests.NAMESPACE not in re.sub(r"^#.*", "", text, flags=re.MULTILINE)


def test_stand_alone_file_needs_no_custom_resource():
    objects = [each for each in yaml.safe_load_all((DIRECTORY / "standalone.yaml").read_text()) if each]
    groups = {each["apiVersion"].partition("/")[0] for each in objects}
    assert groups == {"v1", "apps", "rbac.authorization.k8s.io"}
    listeners = envoy_of(objects, "my-pool-epp-proxy")["static_resources"]["listeners"]
    assert {each["address"]["socket_address"]["port_value"] for each in listeners} == {8081, 19001}


async def test_valkey_is_accepted_and_the_values_at_its_top_make_pickers_that_reach_it(space, helm):
    text = (DIRECTORY / "valkey.yaml").read_text()
    objects = list(filter(None, yaml.safe_load_all(text.replace(manifests.NAMESPACE, space.namespace))))
    for each in objects:
        await space.apply(each)
        await space.admin.apply(each, dryRun="All", fieldValidation="Strict")
    pickers = helm.template(*re.findall(r"^#   --set (.*)$", text, re.MULTILINE), *FLAVOURS["enclosed"])
    picker = one(pickers, "Deployment")["spec"]["template"]
    (port,) = one(objects, "Service")["spec"]["ports"]
    host = f"{one(objects, 'Service')['metadata']['name']}:{port['port']}"
    assert f"--shared-state=valkey://{host}" in container(pickers)["args"]
    environment = {each["name"]: each for each in container(pickers)["env"]}
    (password,) = one(objects, "StatefulSet")["spec"]["template"]["spec"]["containers"][0]["env"]
    assert environment["EPP_REDIS_PASSWORD"]["valueFrom"] == password["valueFrom"]
    assert f"create secret generic {password['valueFrom']['secretKeyRef']['name']} " in text
    ((rule,), out) = (one(objects, "NetworkPolicy")["spec"]["ingress"], one(pickers, "NetworkPolicy")["spec"]["egress"])
    (admitted,) = rule["from"]
    assert admitted["podSelector"]["matchLabels"].items() <= picker["metadata"]["labels"].items()
    assert {"ports": [{"port": port["port"], "protocol": "TCP"}]} in out
    labels = one(objects, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    for selector in (
        one(objects, "Service")["spec"]["selector"],
        one(objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector == labels
