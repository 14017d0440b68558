# SPDX-License-Identifier: Apache-2.0
"""The picker of an installed release: with the arguments and the environment of its Deployment, as its account."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from pathlib import Path

import aiohttp
import pytest

from tests.support.commands import Command, command
from tests.support.exchanges import BODY, request_body
from tests.support.kube.charts import CHART, FLAVOURS, RELEASE, SERVERS, container, one
from tests.support.kube.probes import is_serving
from tests.support.kube.space import Space
from tests.support.otlp import collector
from tests.support.serving import exchange, first_message, served_by
from tests.support.waiting import until

NAME = f"{RELEASE}-epp"
IDLE = {"app": "vllm"}


@pytest.fixture
def started(helm, space: Space, health_port: int, tmp_path: Path):
    """Install a release; start its picker, with ports that are free and the config map where it is mounted."""

    @contextlib.asynccontextmanager
    async def start(*values: str) -> AsyncIterator[tuple[Command, int]]:
        health = f"router.epp.grpcHealthPort={health_port}"
        objects = helm.template(*values, health, namespace=space.namespace)
        admin = {"HOME": str(tmp_path), "KUBECONFIG": str(space.cluster.kubeconfig(tmp_path / "admin"))}
        settings = [word for value in (SERVERS, *values, health) for word in ("--set", value)]
        where = ("--namespace", space.namespace)
        ended = await asyncio.to_thread(helm.run, "install", RELEASE, str(CHART), *where, *settings, **admin)
        assert ended.returncode == 0, ended.stderr
        mounted = tmp_path / "config"
        mounted.mkdir()
        for name, text in one(objects, "ConfigMap", NAME)["data"].items():
            (mounted / name).write_text(text)
        picker = container(objects)
        arguments = [each.replace("/config/", f"{mounted}/") for each in picker["args"]]
        account = await space.user(NAME)  # of the release, with the rights that its Role gives
        environment = {
            **environment_of(picker, space.namespace),
            "KUBECONFIG": str(account.kubeconfig(tmp_path / "account")),
        }
        async with command("serve", *arguments, "--grpc-port=0", "--metrics-port=0", **environment) as running:
            yield running, health_port

    return start


def environment_of(picker: dict, namespace: str) -> Mapping[str, str]:
    """Return the variables of a container, with what a kubelet fills in."""
    fields = {"metadata.namespace": namespace, "metadata.name": f"{NAME}-5d8686444f-7rb5w", "spec.nodeName": "node-1"}
    found: dict[str, str] = {}
    for each in picker["env"]:
        value = each.get("value") or fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        for name, known in found.items():
            value = value.replace(f"$({name})", known)
        found[each["name"]] = value
    return found


@pytest.mark.parametrize(
    "flavour", ["gateway", "without-pool", "leader-election", "accelerators", "monitored", "sidecar"]
)
async def test_picker_of_a_release_becomes_ready(started, space, flavour):
    await space.pod("server", "127.0.0.2", labels=IDLE)
    async with started(*FLAVOURS[flavour]) as (picker, health_port):
        probes = {"livenessProbe": "liveness", "readinessProbe": "readiness"}
        for service in probes.values():
            await until(lambda name=service: is_serving(health_port, name), f"{service} is answered", seconds=60)
        assert picker.running
        needed = (line for line in picker.err if '"optional objects not read"' not in line)
        refused = [line for line in needed if "forbidden" in line.lower()]
        assert refused == []


async def test_metrics_of_a_guarded_release_are_for_its_reader(started, space):
    await space.pod("server", "127.0.0.2", labels=IDLE)
    async with started(*FLAVOURS["guarded"]) as (picker, _):
        port = int(json.loads(await picker.says('"msg":"ready"'))["metrics"].rpartition(":")[2])
        reader = await space.user(f"{NAME}-metrics-reader")

        async def may_read() -> bool:
            return await status_of_metrics(port, reader.token) == HTTPStatus.OK

        await until(may_read, "the reader may read", seconds=30)
        assert await status_of_metrics(port) == HTTPStatus.UNAUTHORIZED
        assert await status_of_metrics(port, (await space.user("other")).token) == HTTPStatus.FORBIDDEN


async def status_of_metrics(port: int, token: str = "") -> int:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    address = f"http://127.0.0.1:{port}/metrics"
    async with aiohttp.ClientSession() as http, http.get(address, headers=headers) as page:
        return page.status


async def test_picker_of_a_traced_release_exports_its_traces_to_the_address_of_the_values(started, space):
    await space.pod("server", "127.0.0.2", labels=IDLE)
    async with collector() as received:
        values = (
            "router.tracing.enabled=true",
            f"router.tracing.otelExporterEndpoint={received.address}",
            "router.tracing.sampling.sampler=parentbased_always_on",
            "router.epp.flags.secure-serving=false",
        )
        async with started(*values) as (picker, _):
            served = await served_by(picker)
            async with served.channel() as channel:
                call = exchange(channel)
                await call.write(first_message())
                await call.write(request_body(BODY, end=True))
                assert (await call.read()).HasField("immediate_response")  # no server answers at that address
            await until(lambda: received.spans, "spans have come", seconds=60)
    assert {span.name for span in received.spans} == {"gateway.request", "gateway.request_orchestration"}
    resource = received.spans[0].resource
    assert resource["service.name"] == "llm-d-router/epp"
    assert resource["k8s.namespace.name"] == space.namespace
    assert resource["k8s.pod.name"].startswith(f"{NAME}-")
    assert resource["k8s.node.name"] == "node-1"
