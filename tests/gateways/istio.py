# SPDX-License-Identifier: Apache-2.0
"""Istio's control plane as its chart starts it, and the Envoy of its gateways without its agent."""

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tests.gateways.front import ENVOY
from tests.gateways.kubelet import Pod
from tests.support.kube.charts import Helm, one
from tests.support.kube.client import Manifest
from tests.support.kube.processes import Process
from tests.support.kube.running import Cluster

NAMESPACE = "istio-system"
_FILTERS = "type.googleapis.com/envoy.extensions.filters"
XDS_PORT, READY_PORT, ADMIN_PORT = 15012, 8080, 15000
_TLS = {
    "name": "tls",
    "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        "sni": f"istiod.{NAMESPACE}.svc",
    },
}

VALUES = (
    "pilot.env.ENABLE_GATEWAY_API_INFERENCE_EXTENSION=true",
    "meshConfig.accessLogFile=/dev/stdout",
    # Otherwise Istio asks for filters that only its own build of Envoy has: `istio.stats`, `istio.metadata_exchange`.
    "telemetry.enabled=false",
    "pilot.env.PILOT_ENABLE_METADATA_EXCHANGE=false",
    "pilot.env.PILOT_ENABLE_ALPN_FILTER=false",
    # And Envoy waits for certificates of the mesh, which are Istio's agent's; pods without a sidecar ask for none.
    "meshConfig.enableAutoMtls=false",
)
"""Values of Istio's chart; with these, Envoy accepts all that it is told."""


def definitions_in(place: Path) -> list[Manifest]:
    """Return the definitions of Istio, of the Gateway API and of its inference extension."""
    files = sorted((place / "crds").rglob("*.yaml"))
    documents = [document for file in files for document in yaml.safe_load_all(file.read_text()) if document]
    return [each for each in documents if each["kind"] == "CustomResourceDefinition"]


@asynccontextmanager
async def istiod(cluster: Cluster, place: Path, helm: Helm, directory: Path) -> AsyncIterator[Process]:
    """Install the objects that configure Istio, and run its control plane on 127.0.0.1."""
    settings = [word for value in VALUES for word in ("--set", value)]
    where = ("--namespace", NAMESPACE, "--kube-version", helm.kube_version)
    ended = helm.run("template", "istiod", str(place / "istiod"), *where, *settings)
    assert ended.returncode == 0, ended.stderr
    objects = [each for each in yaml.safe_load_all(ended.stdout) if each]
    async with cluster.client() as admin:
        await admin.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        for each in objects:
            if each["kind"] == "ConfigMap":
                await admin.apply(each)
    (container,) = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    variables = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    variables |= {"POD_NAME": "istiod-0", "POD_NAMESPACE": NAMESPACE, "SERVICE_ACCOUNT": "istiod"}
    variables["KUBECONFIG"] = str(cluster.kubeconfig(directory / "kubeconfig"))
    process = Process(
        directory / "istiod.log",
        "/usr/bin/env",
        f"--chdir={directory}",  # it keeps its certificates in the working directory
        *(f"{name}={value}" for name, value in variables.items()),
        str(place / "pilot-discovery"),
        *container["args"],
        f"--kubeconfig={variables['KUBECONFIG']}",
    )

    async def ready() -> bool:
        with contextlib.suppress(aiohttp.ClientConnectionError):
            async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{READY_PORT}/ready") as response:
                return response.status == 200
        return False

    try:
        await process.start(ready)
        yield process
    finally:
        process.kill()


async def gateway(pod: Pod) -> Sequence[str]:
    """Return the command line of the Envoy in a pod of Istio's."""
    file, account = pod.directory / "envoy.json", pod.environment["SERVICE_ACCOUNT"]
    answer = await pod.space.admin.request(
        "POST",
        f"/api/v1/namespaces/{pod.space.namespace}/serviceaccounts/{account}/token",
        {"spec": {"audiences": ["istio-ca"]}},
    )
    file.write_text(json.dumps(_bootstrap(pod, answer["status"]["token"])))
    return (ENVOY, "--config-path", str(file), "--base-id", str(int(pod.ip.replace(".", ""))), "--concurrency", "2")


def _bootstrap(pod: Pod, token: str) -> dict[str, Any]:
    """Return what Istio's agent writes for Envoy, without its own certificates, statistics and DNS.

    Envoy asks the control plane itself, as its service account, and is ready when it has what it asked for.
    """
    manifest, variables = pod.manifest, pod.environment
    labels = manifest["metadata"]["labels"]
    described = {
        "NAME": pod.name,
        "NAMESPACE": pod.space.namespace,
        "SERVICE_ACCOUNT": variables["SERVICE_ACCOUNT"],
        "INSTANCE_IPS": pod.ip,
        "LABELS": labels,
        "ANNOTATIONS": manifest["metadata"].get("annotations", {}),
        "ISTIO_VERSION": "1.31.0",
        "PROXY_CONFIG": json.loads(variables["PROXY_CONFIG"]),
    }
    prefix = "ISTIO_META_"
    described |= {name.removeprefix(prefix): value for name, value in variables.items() if name.startswith(prefix)}
    domain = f"{pod.space.namespace}.svc.cluster.local"
    from_control_plane = {"ads": {}, "initial_fetch_timeout": "0s", "resource_api_version": "V3"}
    authorization = {"key": "authorization", "value": f"Bearer {token}"}
    ready = {"name": "ready", "address": _socket(pod.ip, 15021), "filter_chains": [{"filters": [_readiness()]}]}
    return {
        "node": {
            "id": f"router~{pod.ip}~{pod.name}.{pod.space.namespace}~{domain}",
            "cluster": f"{labels['service.istio.io/canonical-name']}.{pod.space.namespace}",
            "metadata": described,
        },
        "admin": {"address": _socket(pod.ip, ADMIN_PORT)},
        "dynamic_resources": {
            "lds_config": from_control_plane,
            "cds_config": from_control_plane,
            "ads_config": {
                "api_type": "DELTA_GRPC",
                "set_node_on_first_message_only": True,
                "transport_api_version": "V3",
                "grpc_services": [{"envoy_grpc": {"cluster_name": "xds-grpc"}, "initial_metadata": [authorization]}],
            },
        },
        "static_resources": {
            "listeners": [ready],
            "clusters": [
                _cluster("xds-grpc", "127.0.0.1", XDS_PORT, http2=True) | {"transport_socket": _TLS},
                _cluster("admin", pod.ip, ADMIN_PORT, http2=False),
            ],
        },
    }


def _socket(address: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": address, "port_value": port}}


def _readiness() -> dict[str, Any]:
    route = {"match": {"path": "/healthz/ready"}, "route": {"cluster": "admin", "prefix_rewrite": "/ready"}}
    router = {"@type": f"{_FILTERS}.http.router.v3.Router"}
    return {
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": {
            "@type": f"{_FILTERS}.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "ready",
            "route_config": {"virtual_hosts": [{"name": "ready", "domains": ["*"], "routes": [route]}]},
            "http_filters": [{"name": "envoy.filters.http.router", "typed_config": router}],
        },
    }


def _cluster(name: str, address: str, port: int, *, http2: bool) -> dict[str, Any]:
    endpoint = {"endpoint": {"address": _socket(address, port)}}
    protocol = {"http2_protocol_options": {}} if http2 else {}
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]},
        **protocol,
    }
