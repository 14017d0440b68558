# SPDX-License-Identifier: Apache-2.0
"""Behind Envoy Gateway's control plane, as it configures Envoy for the example in `deploy/`: where requests go."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio
import yaml

from tests.gateways import envoy_gateway, features, istio, kind_walk
from tests.gateways.build_assets import ASSETS
from tests.gateways.conftest import Mesh
from tests.gateways.controllers import controllers_of
from tests.gateways.kubelet import NODE, kubelet_of
from tests.gateways.place import PICKER, Place, addresses_of, answers_during, place_in, update_servers, whole
from tests.kube.build_assets import ASSETS as KUBE_ASSETS
from tests.support.kube import manifests as write
from tests.support.kube.charts import REPOSITORY, Helm
from tests.support.kube.running import running
from tests.support.kube.space import Space

EXAMPLE = REPOSITORY / "deploy" / "examples" / "envoy-gateway"


@pytest_asyncio.fixture(scope="module", loop_scope="session")  # it ends before Istio starts, which wants its ports
async def example(tmp_path_factory) -> AsyncIterator[Place]:
    """The example as shipped, with two model servers, in a cluster with Envoy Gateway."""
    directory = tmp_path_factory.mktemp("cluster")
    programs, assets = KUBE_ASSETS.directory(), ASSETS.directory()
    runners = {"envoyproxy/envoy:": envoy_gateway.gateway, "envoyproxy/gateway": envoy_gateway.shutdown_manager(assets)}
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(running(programs, directory))
        others = [each for each in istio.definitions_in(assets) if "istio.io" not in each["spec"]["group"]]
        await cluster.define(*others, *envoy_gateway.definitions_in(assets))
        admin = await stack.enter_async_context(cluster.client())
        await admin.apply(write.node(NODE))
        await stack.enter_async_context(controllers_of(cluster, assets / "kube-controller-manager", directory))
        process = await stack.enter_async_context(envoy_gateway.envoy_gateway(cluster, assets, directory))
        gateways = Space(cluster, admin, envoy_gateway.NAMESPACE)
        kubelet = await stack.enter_async_context(kubelet_of(gateways, tmp_path_factory.mktemp("gateways"), runners))
        mesh = Mesh(cluster, Helm(programs / "helm"), process)
        place = await stack.enter_async_context(place_in(mesh, tmp_path_factory.mktemp("example")))
        await place.serve(2)
        await place.install(files=(EXAMPLE / "values.yaml",))
        for each in yaml.safe_load_all((EXAMPLE / "gateway.yaml").read_text()):
            await place.space.apply(each)
        owner = {"gateway.envoyproxy.io/owning-gateway-namespace": place.space.namespace}
        (pod,) = await kubelet.ready(1, **owner)
        place.url = f"http://{pod['status']['podIP']}:10080"  # where it listens in place of port 80
        place.gateways, place.gateway_labels = kubelet, owner
        await place.answers()
        yield place


class TestBasics(features.Basics):
    """See `features`."""


async def test_rolling_update_of_model_servers_loses_no_request(example):
    old = addresses_of(await example.kubelet.pods(app="vllm"))
    assert whole(
        await answers_during(example, lambda: update_servers(example, old), lambda answer: answer.server not in old)
    )


async def test_without_model_servers_the_refusal_is_the_picker_s(example):
    await example.scale("vllm", 0, app="vllm")
    refusal = await example.ask()
    assert (refusal.status, "error" in json.loads(refusal.body)) == (503, True)
    assert refusal.headers["x-llm-d-request-dropped-reason"]
    await example.scale("vllm", 2, app="vllm")
    await example.answers()


FAIL_OPEN = {"failOpen": True, "processingMode": {"request": {"body": "Buffered"}, "response": {"body": "Streamed"}}}
"""Envoy Gateway refuses `failOpen` in full duplex."""


@pytest.mark.parametrize(("change", "status"), [({}, 500), (FAIL_OPEN, 200)])
async def test_without_a_picker_the_policy_decides(example, change, status):
    policy = write.manifest("gateway.envoyproxy.io/v1alpha1", "EnvoyExtensionPolicy", "vllm", example.space.namespace)
    (processor,) = (await example.space.admin.get(policy))["spec"]["extProc"]
    await example.space.admin.patch(policy, {"spec": {"extProc": [processor | change]}})
    await example.scale("vllm-epp", 0, **PICKER)
    await example.answers(status)
    assert {(answer.status, answer.picked) for answer in [await example.ask() for _ in range(10)]} == {(status, None)}
    await example.scale("vllm-epp", 1, **PICKER)
    await example.picks()
    assert {answer.picked is None for answer in [await example.ask() for _ in range(10)]} == {False}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def world(example, tmp_path_factory) -> AsyncIterator[features.World]:
    """The example once more, for a release that is called over TLS."""
    release, policies = features.RELEASE, "gateway.networking.k8s.io/v1"
    values = EXAMPLE / "values.yaml"
    async with features.spans_and_release(example, tmp_path_factory.mktemp("llama"), values) as (spans, certificate):
        text = (EXAMPLE / "gateway.yaml").read_text()
        for key in ("name", "app"):
            text = text.replace(f"{key}: vllm", f"{key}: {release}")
        shipped = {each["kind"]: each for each in yaml.safe_load_all(text)}
        shipped["HTTPRoute"]["spec"]["rules"] = features.rules({"name": release, "port": 8000})
        shipped["EnvoyExtensionPolicy"]["spec"]["lua"] = [{"type": "Inline", "inline": features.LUA}]

        async def trust(authority: bytes) -> None:
            await example.space.apply(write.manifest("v1", "ConfigMap", "ca", data={"ca.crt": authority.decode()}))

        async def use_http2() -> None:
            service = write.manifest("v1", "Service", release, example.space.namespace)
            port = {"name": "http", "port": 8000, "appProtocol": "kubernetes.io/h2c"}
            await example.space.admin.patch(service, {"spec": {"ports": [port]}})

        await trust(certificate)
        authorities = [{"group": "", "kind": "ConfigMap", "name": "ca"}]
        validation = {"caCertificateRefs": authorities, "hostname": features.name_of(example)}
        target = {"group": "", "kind": "Service", "name": f"{release}-epp"}
        spec = {"targetRefs": [target], "validation": validation}
        await example.space.apply(write.manifest(policies, "BackendTLSPolicy", "picker", spec=spec))
        for kind in ("Service", "EnvoyExtensionPolicy", "BackendTrafficPolicy", "HTTPRoute"):
            await example.space.apply(shipped[kind])
        made = features.World(example, spans, use_http2, trust, certificate)
        await made.answers()
        yield made


class TestFeatures(features.Features):
    """See `features`."""


async def test_walk_on_kind_leads_to_an_answer(example, tmp_path):
    """Without its gateway."""
    answer, servers = await kind_walk.walk(example.space.cluster, example.helm, tmp_path)
    assert (answer.status, answer.picked in servers) == (200, True)
