# SPDX-License-Identifier: Apache-2.0
"""The chart in `deploy/`, rendered by Helm."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.kube.client import Manifest

REPOSITORY = Path(__file__).parents[3]
CHART = REPOSITORY / "deploy" / "chart"
NAMESPACE = "llm"
RELEASE = "vllm"
PICKERS = f"{RELEASE}-epp-pickers.{NAMESPACE}.svc.cluster.local"
"""Where the stand-alone Envoy looks for pickers that are not in its own pod."""
FALLBACKS = f"{RELEASE}-epp-model-servers.{NAMESPACE}.svc.cluster.local"
"""Where it looks for model servers while it has no picker."""
SERVERS = "router.modelServers.matchLabels.app=vllm"
"""The one value that a release must have."""
UNGUARDED = "router.monitoring.prometheus.auth.enabled=false"
"""Everybody who reaches the port may read metrics."""

FLAVOURS: Mapping[str, Sequence[str]] = {
    "gateway": (),
    "istio": ("provider.name=istio", "httpRoute.create=true", "httpRoute.headerMatches.x-model=llama"),
    "gke": ("provider.name=gke", "httpRoute.create=true", "router.epp.grpcHealthPort=9005"),
    "leader-election": ("router.epp.replicas=3",),
    "autoscaled": ("router.epp.autoscaling.enabled=true", "router.epp.autoscaling.minReplicas=2"),
    "accelerators": ("router.epp.accelerators.clusterObjects=true",),
    "clusters": ("router.epp.clusters.hubObjects=true",),
    "monitored": ("router.monitoring.prometheus.enabled=true", UNGUARDED),
    "guarded": ("router.monitoring.prometheus.enabled=true",),
    "guarded-pods": (
        "router.monitoring.prometheus.enabled=true",
        "router.monitoring.prometheus.kind=PodMonitor",
        "router.monitoring.prometheus.auth.secretName=scraper",
    ),
    "guarded-by-google": (
        "router.monitoring.prometheus.enabled=true",
        "router.monitoring.provider.name=gmp",
    ),
    "traced": ("router.tracing.enabled=true",),
    "tokenizer": (
        "router.tokenizer.enabled=true",
        "router.tokenizer.modelName=my/model",
        "router.latencyPredictor.enabled=true",
        "router.proxy.enabled=true",
    ),
    "monitored-pods": (
        "router.monitoring.prometheus.enabled=true",
        "router.monitoring.prometheus.kind=PodMonitor",
        UNGUARDED,
        "router.proxy.enabled=true",
    ),
    "monitored-by-google": (
        "router.monitoring.prometheus.enabled=true",
        "router.monitoring.provider.name=gmp",
        "router.proxy.enabled=true",
        "router.proxy.mode=service",
    ),
    "enclosed": (
        "router.networkPolicy.enabled=true",
        "router.networkPolicy.gateways[0].namespaceSelector.matchLabels.name=gateways",
        "router.networkPolicy.monitoring[0].namespaceSelector.matchLabels.name=monitoring",
        "router.networkPolicy.apiServer.peers[0].ipBlock.cidr=10.0.0.1/32",
    ),
    "without-pool": ("router.inferencePool.create=false", "router.modelServers.targetPorts[0].number=8001"),
    "objectives": (
        "router.inferenceObjectives[0].name=interactive",
        "router.inferenceObjectives[0].priority=10",
        "router.inferenceObjectives[1].name=batch",
        "router.inferenceObjectives[1].priority=-1",
    ),
    "sidecar": ("router.proxy.enabled=true",),
    "sidecar-fail-open": ("router.proxy.enabled=true", "router.proxy.failOpen=true"),
    "sidecar-buffered": (
        "router.proxy.enabled=true",
        "router.proxy.bodyMode=buffered",
        "router.epp.flags.max-request-body=64Mi",
    ),
    "proxy-service": (
        "router.proxy.enabled=true",
        "router.proxy.mode=service",
        "router.networkPolicy.enabled=true",
        "router.inferencePool.create=false",
        "router.epp.replicas=2",
    ),
    "proxy-service-fail-open": (
        "router.proxy.enabled=true",
        "router.proxy.mode=service",
        "router.proxy.failOpen=true",
        "router.proxy.bodyMode=buffered",
        "router.epp.flags.secure-serving=false",
        "router.modelServers.targetPorts[0].number=8000",
        "router.modelServers.targetPorts[1].number=8001",
        "router.modelServers.protocol=grpc",
    ),
}
"""Values of each, besides the labels of the model servers."""


@dataclass(frozen=True)
class Helm:
    """The program, and the version of Kubernetes that charts are rendered for."""

    program: Path
    kube_version: str = "1.36.3"

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run it; the environment has nothing else of the user's."""
        return subprocess.run(
            [self.program, *arguments],
            env={"HOME": "/nonexistent", "PATH": f"{self.program.parent}:/usr/bin:/bin", **environment},
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def template(
        self, *values: str, files: Sequence[Path] = (), namespace: str = NAMESPACE, release: str = RELEASE
    ) -> list[Manifest]:
        """Return the objects of a release with these values."""
        ended = self.render(*values, files=files, namespace=namespace, release=release)
        assert ended.returncode == 0, ended.stderr
        return [document for document in yaml.safe_load_all(ended.stdout) if document]

    def refusal(self, *values: str) -> str:
        """Return what is said of values that are refused."""
        ended = self.render(*values)
        assert ended.returncode != 0, "accepted"
        return ended.stderr

    def render(
        self, *values: str, files: Sequence[Path] = (), namespace: str = NAMESPACE, release: str = RELEASE
    ) -> subprocess.CompletedProcess[str]:
        settings = [word for value in (SERVERS, *values) for word in ("--set", value)]
        given = [word for file in files for word in ("--values", str(file))]
        where = ("--namespace", namespace, "--kube-version", self.kube_version)
        return self.run("template", release, str(CHART), *where, *given, *settings)


def one(objects: Sequence[Manifest], kind: str, name: str = "") -> Manifest:
    """Return the only object of a kind, or of a kind and name."""
    (found,) = [each for each in objects if each["kind"] == kind and name in {"", each["metadata"]["name"]}]
    return found


def kinds(objects: Sequence[Manifest]) -> dict[str, list[str]]:
    """Return the names of the objects of each kind."""
    found: dict[str, list[str]] = {}
    for each in objects:
        found.setdefault(each["kind"], []).append(each["metadata"]["name"])
    return found


def container(objects: Sequence[Manifest], name: str = "epp", deployment: str = f"{RELEASE}-epp") -> Manifest:
    """Return a container of a Deployment."""
    spec: dict[str, Any] = one(objects, "Deployment", deployment)["spec"]["template"]["spec"]
    (found,) = [each for each in spec["containers"] if each["name"] == name]
    return found


def envoy_of(objects: Sequence[Manifest], name: str = f"{RELEASE}-epp-proxy") -> dict[str, Any]:
    """Return the configuration of the stand-alone Envoy."""
    return yaml.safe_load(one(objects, "ConfigMap", name)["data"]["envoy.yaml"])
