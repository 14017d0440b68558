# SPDX-License-Identifier: Apache-2.0
"""Envoy Gateway's control plane, and the Envoy of its gateways with the bootstrap that it wrote."""

import asyncio
import base64
import contextlib
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import yaml

from tests.gateways.front import ENVOY
from tests.gateways.kubelet import Pod, Runner
from tests.support.kube import manifests as write
from tests.support.kube.client import Manifest
from tests.support.kube.processes import Process
from tests.support.kube.running import Cluster

NAMESPACE = "envoy-gateway-system"
CONTROLLER = "gateway.envoyproxy.io/gatewayclass-controller"
XDS_PORT = 18000

CONFIG = {
    "apiVersion": "gateway.envoyproxy.io/v1alpha1",
    "kind": "EnvoyGateway",
    "gateway": {"controllerName": CONTROLLER},
    "provider": {"type": "Kubernetes"},
    # Beside its Envoy, which wants the ports that it has otherwise.
    "admin": {"address": {"host": "127.0.0.1", "port": 19900}},
    "telemetry": {"metrics": {"prometheus": {"disable": True}}},
    # By which tests name a subset of the endpoints.
    "extensionApis": {"enableLua": True},
}
"""What its chart writes, and Lua; without the image of its rate limits, which are not used."""


def definitions_in(place: Path) -> list[Manifest]:
    """Return the definitions of its policies: templates, in which conditions stand on lines of their own."""
    files = sorted((place / "crds-envoy-gateway").glob("*.yaml"))
    texts = ("\n".join(line for line in file.read_text().splitlines() if "{{" not in line) for file in files)
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


@asynccontextmanager
async def envoy_gateway(cluster: Cluster, place: Path, directory: Path) -> AsyncIterator[Process]:
    """Run it in a directory that it takes for the root, as in its container: its certificates are in /certs."""
    root = directory / "root"
    (root / "certs").mkdir(parents=True)
    (root / "tmp").mkdir()
    shutil.copyfile(place / "envoy-gateway", root / "envoy-gateway")
    (root / "envoy-gateway").chmod(0o755)
    (root / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    kubeconfig = yaml.safe_load(cluster.kubeconfig(directory / "kubeconfig").read_text())
    authority = kubeconfig["clusters"][0]["cluster"]
    authority.pop("certificate-authority")
    authority["certificate-authority-data"] = base64.b64encode(cluster.access.ca.read_bytes()).decode()
    (root / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    inside = ("/usr/sbin/chroot", str(root), "/envoy-gateway")
    variables = {
        "HOME": "/",
        "KUBECONFIG": "/kubeconfig",
        "ENVOY_GATEWAY_NAMESPACE": NAMESPACE,
        "KUBERNETES_CLUSTER_DOMAIN": "cluster.local",
    }
    async with cluster.client() as admin:
        await admin.apply(write.manifest("v1", "Namespace", NAMESPACE))
        ended = await asyncio.to_thread(
            subprocess.run, (*inside, "certgen", "--disable-topology-injector"), env=variables, capture_output=True
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        secret = await admin.get(write.manifest("v1", "Secret", "envoy-gateway", NAMESPACE))
        write_secret(secret, root / "certs")
        spec = {"controllerName": CONTROLLER}
        await admin.apply(write.manifest("gateway.networking.k8s.io/v1", "GatewayClass", "eg", spec=spec))
    process = Process(
        directory / "envoy-gateway.log",
        "/usr/bin/env",
        *(f"{name}={value}" for name, value in variables.items()),
        *inside,
        "server",
        "--config-path=/config.yaml",
    )

    async def ready() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", XDS_PORT), timeout=1):
            return True
        return False

    try:
        await process.start(ready)
        yield process
    finally:
        process.kill()


def write_secret(secret: Manifest, directory: Path) -> None:
    """Write the files of a secret."""
    for name, value in secret["data"].items():
        (directory / name).write_bytes(base64.b64decode(value))


async def gateway(pod: Pod) -> Sequence[str]:
    """Return the command line of its Envoy: as it is, but for the control plane's address and the place of files."""
    volumes = {each["name"]: each for each in pod.manifest["spec"]["volumes"]}
    namespace = pod.manifest["metadata"]["namespace"]
    certs, sds = pod.directory / "certs", pod.directory / "sds"
    certs.mkdir()
    sds.mkdir()
    secret, config = volumes["certs"]["secret"]["secretName"], volumes["sds"]["configMap"]["name"]
    write_secret(await pod.space.admin.get(write.manifest("v1", "Secret", secret, namespace)), certs)
    mounted = await pod.space.admin.get(write.manifest("v1", "ConfigMap", config, namespace))
    for name, text in mounted["data"].items():
        (sds / name).write_text(text.replace("/certs/", f"{certs}/"))
    arguments = pod.arguments
    index = arguments.index("--config-yaml") + 1
    text = arguments[index].replace("/sds/", f"{sds}/")
    arguments[index] = text.replace(f"envoy-gateway.{NAMESPACE}.svc.cluster.local.", "127.0.0.1")
    return (ENVOY, *arguments, "--base-id", str(int(pod.ip.replace(".", ""))))


def shutdown_manager(place: Path) -> Runner:
    """Return the runner of the container beside its Envoy."""

    async def run(pod: Pod) -> Sequence[str]:
        return (str(place / "envoy-gateway"), *pod.arguments)

    return run
