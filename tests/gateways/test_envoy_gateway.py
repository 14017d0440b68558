# SPDX-License-Identifier: Apache-2.0
"""Behind Envoy Gateway's control plane, as it configures Envoy for the example in `deploy/`: where requests go."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest_asyncio
import yaml

from tests.gateways import envoy_gateway, istio
from tests.gateways.build_assets import ASSETS
from tests.gateways.conftest import Mesh
from tests.gateways.controllers import controllers_of
from tests.gateways.kubelet import NODE, kubelet_of
from tests.gateways.place import Place, place_in
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
    runners = {
        "envoyproxy/envoy:": envoy_gateway.gateway,
        "envoyproxy/gateway": envoy_gateway.shutdown_manager(assets),
    }
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
        await place.answers()
        yield place


async def test_endpoint_that_the_picker_chose_answers(example):
    pods = await example.kubelet.pods(app="vllm")
    addresses = {pod["metadata"]["name"]: f"{pod['status']['podIP']}:8000" for pod in pods}
    answers = [await example.ask(f"prompt {number}", stream=number % 2 == 0) for number in range(30)]
    assert [answer.status for answer in answers] == [200] * 30
    assert [answer.picked for answer in answers] == [addresses[answer.server] for answer in answers]
