# SPDX-License-Identifier: Apache-2.0
"""A node without containers: pods of one namespace run as processes, each at an address of its own."""

import asyncio
import base64
import contextlib
import itertools
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from tests.support.kube import manifests as write
from tests.support.kube.client import Manifest, RefusedError
from tests.support.kube.processes import Process
from tests.support.kube.space import Space
from tests.support.waiting import until

NODE = "node-1"
EPP = (sys.executable, "-m", "epp")
_addresses = (f"10.8.{high}.{low}" for high, low in itertools.product(range(256), range(1, 255)))


@dataclass(frozen=True, slots=True)
class Pod:
    """A container of a pod that is about to run."""

    manifest: Manifest
    container: Manifest
    ip: str
    directory: Path
    """For files of this container alone."""
    space: Space

    @property
    def name(self) -> str:
        name: str = self.manifest["metadata"]["name"]
        return name

    @property
    def environment(self) -> dict[str, str]:
        """The variables of the container, without those that come of resources."""
        fields = {
            "metadata.name": self.name,
            "metadata.namespace": self.space.namespace,
            "status.podIP": self.ip,
            "status.hostIP": self.ip,
            "spec.nodeName": NODE,
            "spec.serviceAccountName": self.manifest["spec"].get("serviceAccountName", ""),
        }
        found: dict[str, str] = {}
        for each in self.container.get("env", ()):
            source = each.get("valueFrom", {})
            if "fieldRef" in source:
                found[each["name"]] = fields.get(source["fieldRef"]["fieldPath"], "")
            elif not source:
                found[each["name"]] = each.get("value", "")
        return found

    @property
    def arguments(self) -> list[str]:
        """The arguments of the container, with its variables."""
        environment = self.environment
        return [
            re.sub(r"\$\((\w+)\)", lambda found: environment.get(found[1], found[0]), argument)
            for argument in self.container.get("args", ())
        ]


Runner = Callable[[Pod], Awaitable[Sequence[str]]]
"""Returns the command line of a container; it may write files."""


async def picker(pod: Pod) -> Sequence[str]:
    """Return the command line of a picker of the chart: at the address of its pod, with the rights of its account."""
    arguments = await mounted(pod)
    account = await pod.space.user(pod.manifest["spec"]["serviceAccountName"])
    environment = {**pod.environment, "KUBECONFIG": str(account.kubeconfig(pod.directory / "kubeconfig"))}
    variables = [f"{name}={value}" for name, value in environment.items()]
    return ("/usr/bin/env", *variables, *EPP, "serve", *arguments, f"--bind-address={pod.ip}")


async def mounted(pod: Pod) -> list[str]:
    """Write the files that are mounted into a container; return its arguments, which name these."""
    arguments = pod.arguments
    for mount in pod.container["volumeMounts"]:
        files = await _files(pod, mount["name"])
        directory = pod.directory / mount["name"]
        directory.mkdir(exist_ok=True)
        for name, content in files.items():
            (directory / name).write_bytes(content)
        arguments = [each.replace(mount["mountPath"], str(directory)) for each in arguments]
    return arguments


async def _files(pod: Pod, volume: str) -> dict[str, bytes]:
    """Return the files of a config map or a secret that is a volume."""
    (source,) = [each for each in pod.manifest["spec"]["volumes"] if each["name"] == volume]
    read = partial(write.manifest, "v1", namespace=pod.space.namespace)
    if "configMap" in source:
        found = await pod.space.admin.get(read("ConfigMap", source["configMap"]["name"]))
        return {name: text.encode() for name, text in found["data"].items()}
    if "secret" in source:
        found = await pod.space.admin.get(read("Secret", source["secret"]["secretName"]))
        return {name: base64.b64decode(value) for name, value in found["data"].items()}
    return {}


async def model_server(pod: Pod) -> Sequence[str]:
    """Return the command line of a simulated model server that says the name of its pod in each answer."""
    return (*EPP, "sim-server", f"--host={pod.ip}", f"--name={pod.name}", *pod.arguments)


async def deaf_server(pod: Pod) -> Sequence[str]:
    """Return the command line of a model server that refuses connections when it is told to."""
    return (sys.executable, str(Path(__file__).with_name("deaf_server.py")), pod.ip)


class Kubelet:
    """Runs each pod of the namespace, restarts it when it ends, and ends it when it is deleted."""

    def __init__(self, space: Space, directory: Path, runners: Mapping[str, Runner]) -> None:
        """`runners` are chosen by a part of the name of the image."""
        self.space = space
        self.directory = directory
        self._runners = runners
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._deleted: dict[str, asyncio.Event] = {}
        self._processes: dict[str, list[Process]] = {}

    async def ready(self, count: int, **labels: str) -> list[Manifest]:
        """Wait until so many pods with these labels are ready, and no others have them."""
        found: list[Manifest] = []

        async def counted() -> bool:
            self._raise()
            found[:] = await self.pods(**labels)
            return len(found) == count and all(_is_ready(pod) for pod in found)

        await until(counted, f"{count} pods with {labels} are ready", seconds=120)
        return found

    async def pods(self, **labels: str) -> list[Manifest]:
        """Return the pods with these labels, with `_` for `-` in their names."""
        selector = ",".join(f"{name.replace('_', '-')}={value}" for name, value in labels.items())
        listed = await self.space.admin.list("v1", "Pod", self.space.namespace, labelSelector=selector)
        return [{"apiVersion": "v1", "kind": "Pod", **each} for each in listed["items"]]

    def process(self, pod: Manifest) -> Process:
        """Return the process of the first container of a pod."""
        return self._processes[pod["metadata"]["uid"]][0]

    async def run(self) -> None:
        """Look at all pods, again and again."""
        while True:
            present = {pod["metadata"]["uid"]: pod for pod in await self.pods()}
            for uid, pod in present.items():
                if uid not in self._lives:
                    self._deleted[uid] = asyncio.Event()
                    self._lives[uid] = asyncio.create_task(self._live(pod))
            for uid, deleted in self._deleted.items():
                if uid not in present or "deletionTimestamp" in present[uid]["metadata"]:
                    deleted.set()
            await asyncio.sleep(0.1)

    async def end(self) -> None:
        """Kill all processes."""
        for life in self._lives.values():
            life.cancel()
        await asyncio.gather(*self._lives.values(), return_exceptions=True)
        for process in itertools.chain.from_iterable(self._processes.values()):
            process.kill()

    def _raise(self) -> None:
        for life in self._lives.values():
            if life.done():
                life.result()

    async def _live(self, manifest: Manifest) -> None:
        uid, name = manifest["metadata"]["uid"], manifest["metadata"]["name"]
        await self._bind(name)
        ip, parts = next(_addresses), []
        for container in manifest["spec"]["containers"]:
            directory = self.directory / name / container["name"]
            directory.mkdir(parents=True)
            parts.append(Pod(manifest, container, ip, directory, self.space))
        processes = self._processes[uid] = [
            Process(pod.directory / "log", *await self._runner(pod)(pod)) for pod in parts
        ]
        deleted = self._deleted[uid]
        while not deleted.is_set():
            await self._report(manifest, ip, ready=False)
            for pod, process in zip(parts, processes, strict=True):
                if not process.running:
                    await process.start(partial(_probed, pod))
            await self._report(manifest, ip, ready=True)
            # They are children of no event loop.
            while all(process.running for process in processes) and not deleted.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await asyncio.gather(*map(_terminate, parts, processes))
        with contextlib.suppress(RefusedError):  # by force, before
            await self.space.admin.delete(manifest)

    def _runner(self, pod: Pod) -> Runner:
        (runner,) = [runner for part, runner in self._runners.items() if part in pod.container["image"]]
        return runner

    async def _bind(self, name: str) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
        binding = write.manifest("v1", "Binding", name, self.space.namespace, target=target)
        await self.space.admin.request(
            "POST", f"/api/v1/namespaces/{self.space.namespace}/pods/{name}/binding", binding
        )

    async def _report(self, pod: Manifest, ip: str, *, ready: bool) -> None:
        with contextlib.suppress(RefusedError):  # deleted meanwhile
            await self.space.admin.status(pod, write.pod_status(ip, ready=ready))


@asynccontextmanager
async def kubelet_of(space: Space, directory: Path, runners: Mapping[str, Runner]) -> AsyncIterator[Kubelet]:
    """Run the pods of a namespace until the block ends."""
    kubelet = Kubelet(space, directory, runners)
    task = asyncio.create_task(kubelet.run())
    try:
        yield kubelet
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await kubelet.end()


def _is_ready(pod: Manifest) -> bool:
    conditions: list[dict[str, Any]] = pod.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


async def _terminate(pod: Pod, process: Process) -> None:
    hook = pod.container.get("lifecycle", {}).get("preStop", {})
    await asyncio.sleep(hook.get("sleep", {}).get("seconds", 0))
    await process.stop()


async def _probed(pod: Pod) -> bool:
    """Do what the readiness probe of the container asks for."""
    probe = pod.container["readinessProbe"]
    if "grpc" in probe:
        asked = probe["grpc"]
        async with grpc.aio.insecure_channel(f"{pod.ip}:{asked['port']}") as channel:
            try:
                answer = await HealthStub(channel).Check(HealthCheckRequest(service=asked["service"]), timeout=2)
            except grpc.aio.AioRpcError:
                return False
            return bool(answer.status == HealthCheckResponse.SERVING)
    asked = probe["httpGet"]
    named = {each["name"]: each["containerPort"] for each in pod.container.get("ports", ())}
    port = named.get(asked["port"], asked["port"])
    with contextlib.suppress(aiohttp.ClientConnectionError):
        async with aiohttp.ClientSession() as http, http.get(f"http://{pod.ip}:{port}{asked['path']}") as page:
            return page.status == 200
    return False
