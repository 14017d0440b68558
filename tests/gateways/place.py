# SPDX-License-Identifier: Apache-2.0
"""A namespace behind a gateway: model servers, releases of the chart, the gateway and its routes."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tests.gateways import istio
from tests.gateways.front import front
from tests.gateways.kubelet import Kubelet, deaf_server, kubelet_of, model_server, picker
from tests.support.kube import manifests as write
from tests.support.kube.charts import REPOSITORY, Helm
from tests.support.kube.client import Manifest
from tests.support.kube.space import Space, space_in
from tests.support.waiting import until
from tests.support.world import MODEL

EXAMPLE = REPOSITORY / "deploy" / "examples" / "istio"
GATEWAY_API = "gateway.networking.k8s.io/v1"
GATEWAY_NAME = "gateway.networking.k8s.io/gateway-name"
GATEWAY_LABELS = {GATEWAY_NAME: "inference-gateway"}
PICKER = {"app.kubernetes.io/instance": "vllm"}
"""Labels of the picker's pod."""
RUNNERS = {
    "inference-epp:": picker,
    "sim-server:": model_server,
    "deaf-server:": deaf_server,
    "front:": front,
    "/proxyv2:": istio.gateway,
}
PATIENCE_SECONDS = 120.0
CLIENTS = 8
_ports = itertools.count(80)
"""Ports of gateways: each listens on all addresses."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client gets."""

    status: int
    headers: dict[str, str]
    """In lower case."""
    body: bytes

    @property
    def server(self) -> str | None:
        """The pod that says that it answered."""
        return self.headers.get("x-sim-server")

    @property
    def picked(self) -> str | None:
        """The address and port that the picker says it chose."""
        return self.headers.get("x-epp-endpoint", "").rpartition("=")[2] or None


class Place:
    """The namespace, and its gateway."""

    def __init__(self, space: Space, kubelet: Kubelet, helm: Helm, http: aiohttp.ClientSession) -> None:
        self.space = space
        self.kubelet = kubelet
        self.url = ""
        self.gateways, self.gateway_labels = kubelet, GATEWAY_LABELS
        """The pods of the gateway."""
        self.helm = helm
        self._http = http

    async def install(
        self, *values: str, release: str = "vllm", files: Sequence[Path] = (EXAMPLE / "values.yaml",)
    ) -> None:
        """Apply the objects of a release, and wait until its picker is ready."""
        for each in self.render(*values, release=release, files=files):
            await self.space.apply(each)
        await self.kubelet.ready(1, **{"app.kubernetes.io/instance": release})

    def render(self, *values: str, release: str, files: Sequence[Path] = (EXAMPLE / "values.yaml",)) -> list[Manifest]:
        """Return the objects of a release."""
        # Answers tell the endpoint that was chosen; a picker that ends does not linger.
        given = ("router.epp.flags.decision-headers=true", "router.epp.flags.drain-quiet-period=10ms", *values)
        return self.helm.template(*given, files=files, namespace=self.space.namespace, release=release)

    async def serve(
        self,
        count: int,
        *,
        name: str = "vllm",
        app: str = "",
        image: str = "sim-server:test",
        ports: Sequence[int] = (8000,),
        front: bool = False,
    ) -> list[Manifest]:
        """Run so many pods as a Deployment, each with a simulated model server at each port; return them when ready.

        `app` is their label, the name by default; a `front` before the first server takes HTTP/2 too, at port 8000.
        """
        containers = [
            {
                "name": f"server-{port}",
                "image": image,
                "args": [f"--port={port}", f"--model={MODEL}", "--preset=h100", "--time-scale=0.2"],
                "readinessProbe": {"httpGet": {"path": "/health", "port": port}},
                # As long as endpoints that end may still be chosen.
                "lifecycle": {"preStop": {"sleep": {"seconds": 3}}},
            }
            for port in ports
        ]
        if front:
            probe = {"httpGet": {"path": "/health", "port": 8000}}
            containers.append({"name": "front", "image": "front:test", "readinessProbe": probe})
        labels = {"app": app or name, "part": name}
        template = {"metadata": {"labels": labels}, "spec": {"containers": containers}}
        spec = {"replicas": count, "selector": {"matchLabels": labels}, "template": template}
        await self.space.apply(write.manifest("apps/v1", "Deployment", name, spec=spec))
        return await self.kubelet.ready(count, part=name)

    async def open_gateway(self, *routes: Manifest, name: str = "inference-gateway") -> None:
        """Apply the gateway and the route of the example, or these routes in its place, and find its address."""
        port = next(_ports)
        shipped = [each for each in yaml.safe_load_all((EXAMPLE / "gateway.yaml").read_text()) if each]
        for each in shipped:
            if each["kind"] == "Gateway":
                each["metadata"]["name"] = name
                each["spec"]["listeners"][0]["port"] = port
            elif routes:
                continue
            await self.space.apply(each)
        for route in routes:
            await self.space.apply(route)
        (pod,) = await self.kubelet.ready(1, **{GATEWAY_NAME: name})
        address = pod["status"]["podIP"]
        # What a cloud does for a Service of type LoadBalancer.
        service = write.manifest("v1", "Service", f"{name}-istio", self.space.namespace)
        await self.space.admin.status(service, {"loadBalancer": {"ingress": [{"ip": address}]}})
        self.url = f"http://{address}:{port}"

    async def open_example(self, *values: str, count: int = 2, ports: Sequence[int] = (8000,)) -> list[Manifest]:
        """Serve with the release, the gateway and the route of the example; return so many model servers."""
        servers = await self.serve(count, ports=ports)
        await self.install(*values)
        await self.open_gateway()
        await self.answers()
        return servers

    async def conditions(self, kind: str, name: str, api_version: str = GATEWAY_API) -> dict[str, tuple[str, str]]:
        """Return status and reason of each condition of an object, those of its first parent if it has some."""
        found = await self.space.admin.get(write.manifest(api_version, kind, name, self.space.namespace))
        status = found.get("status", {})
        parents = status.get("parents", [])
        shown: list[dict[str, Any]] = parents[0]["conditions"] if parents else status.get("conditions", [])
        return {each["type"]: (each["status"], each["reason"]) for each in shown}

    async def ask(
        self,
        prompt: str = "hello",
        *,
        path: str = "/v1/completions",
        whole: bytes = b"",
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> Answer:
        """Return what came of an answer; `more` are further fields of the request, or `whole` is its body."""
        content = whole or json.dumps({"model": MODEL, "prompt": prompt, "max_tokens": 2, **more}).encode()
        given = {"content-type": "application/json", **(headers or {})}
        async with self._http.post(f"{self.url}{path}", data=content, headers=given) as response:
            body = b""
            with contextlib.suppress(aiohttp.ClientPayloadError):  # the body ends before its end
                async for piece in response.content.iter_any():
                    body += piece
            return Answer(response.status, {name.lower(): value for name, value in response.headers.items()}, body)

    async def answers(self, status: int = 200) -> None:
        """Wait until a request is answered so."""

        async def seen() -> bool:
            try:
                return (await self.ask()).status == status
            except aiohttp.ClientConnectionError:
                return False

        await until(seen, f"a request is answered with {status}", seconds=PATIENCE_SECONDS)

    async def picks(self) -> None:
        """Wait until a picker chooses the endpoint of a request."""

        async def chosen() -> bool:
            return (await self.ask()).picked is not None

        await until(chosen, "a picker chooses", seconds=PATIENCE_SECONDS)

    async def change_pool(self, name: str = "vllm", **spec: Any) -> None:
        """Change fields of the spec of a pool."""
        pool = write.manifest(write.POOLS, "InferencePool", name, self.space.namespace)
        await self.space.admin.patch(pool, {"spec": spec})

    async def scale(self, name: str, count: int, **labels: str) -> list[Manifest]:
        """Change the number of pods of a Deployment, and wait until so many are ready and the others are gone."""
        deployment = write.manifest("apps/v1", "Deployment", name, self.space.namespace)
        await self.space.admin.patch(deployment, {"spec": {"replicas": count}})
        return await self.kubelet.ready(count, **labels)

    async def access_log(self) -> list[str]:
        """Return the lines that Envoy wrote about requests."""
        (pod,) = await self.gateways.pods(**self.gateway_labels)
        lines = self.gateways.process(pod).log.read_text().splitlines()
        return [line for line in lines if "POST" in line]

    async def record_of(self, answer: Answer) -> dict[str, Any]:
        """Return the last request that the server of an answer got."""
        (pod,) = [pod for pod in await self.kubelet.pods() if pod["metadata"]["name"] == answer.server]
        return (await self.records(pod))[-1]

    async def records(self, pod: Manifest) -> list[dict[str, Any]]:
        """Return the requests that a simulated model server got."""
        port = pod["spec"]["containers"][0]["readinessProbe"]["httpGet"]["port"]
        async with self._http.get(f"http://{pod['status']['podIP']}:{port}/sim/requests") as response:
            found: list[dict[str, Any]] = await response.json()
            return found


def route(
    name: str, *backends: Manifest, path: str = "/", gateways: Sequence[str] = ("inference-gateway",)
) -> Manifest:
    """Return an HTTPRoute with one rule for a prefix of paths."""
    match = {"path": {"type": "PathPrefix", "value": path}}
    rule = {"matches": [match], "backendRefs": list(backends), "timeouts": {"request": "0s"}}
    spec = {"parentRefs": [{"name": each} for each in gateways], "rules": [rule]}
    return write.manifest(GATEWAY_API, "HTTPRoute", name, spec=spec)


def to_pool(name: str, **more: Any) -> Manifest:
    """Return a backend of a rule: a pool, with a weight perhaps."""
    return {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": name, **more}


def addresses_of(pods: Sequence[Manifest]) -> dict[str, str]:
    """Return the endpoint of each pod by the pod's name."""
    return {pod["metadata"]["name"]: f"{pod['status']['podIP']}:8000" for pod in pods}


@asynccontextmanager
async def place_in(mesh: Any, directory: Path) -> AsyncIterator[Place]:
    """Open a new namespace."""
    async with (
        space_in(mesh.cluster) as space,
        kubelet_of(space, directory, RUNNERS) as kubelet,
        aiohttp.ClientSession() as http,
    ):
        yield Place(space, kubelet, mesh.helm, http)


async def answers_during(
    place: Place, change: Callable[[], Awaitable[object]], until_server: Callable[[Answer], bool]
) -> list[Answer]:
    """Stream answers to some clients before, during and after a change, which has effect in an answer as described."""
    answers: list[Answer] = []
    ended = asyncio.Event()

    async def client() -> None:
        while not ended.is_set():
            answers.append(await place.ask(max_tokens=20, stream=True))

    async with asyncio.timeout(240), asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(client())
        await until(lambda: len(answers) > 100, "requests are answered", seconds=PATIENCE_SECONDS)
        await change()
        await until(lambda: until_server(answers[-1]), "the change has effect", seconds=PATIENCE_SECONDS)
        count = len(answers)
        await until(lambda: len(answers) > count + 200, "requests are answered", seconds=PATIENCE_SECONDS)
        ended.set()
    return answers


def whole(answers: list[Answer]) -> bool:
    return all(answer.status == 200 and answer.body.endswith(b"data: [DONE]\n\n") for answer in answers)


async def replaced(place: Place, old: Mapping[str, str]) -> bool:
    present = {pod["metadata"]["name"] for pod in await place.kubelet.pods(app="vllm")}
    return not present & set(old)


async def update_servers(place: Place, old: Mapping[str, str]) -> None:
    """Replace all pods of the model servers, as `kubectl rollout restart` does."""
    deployment = write.manifest("apps/v1", "Deployment", "vllm", place.space.namespace)
    change = {"spec": {"template": {"metadata": {"annotations": {"version": "2"}}}}}
    await place.space.admin.patch(deployment, change)
    await until(lambda: replaced(place, old), "all pods are replaced", seconds=PATIENCE_SECONDS)
