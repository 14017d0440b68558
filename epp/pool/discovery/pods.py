# SPDX-License-Identifier: Apache-2.0
"""Endpoints of a pod: one for each port of its pool."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from epp.framework.endpoint import Endpoint
from epp.kube.objects.core import Pod
from epp.runtime.addresses import is_ip

ACTIVE_PORTS = ("llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports")
"""Annotation with the ports of the pool that a pod serves on, comma-separated; the current name, then the former."""

_PORT = re.compile(r"[0-9]{1,5}")


class PodTarget(NamedTuple):
    """Pods that serve a pool, and the ports they serve on."""

    labels: Mapping[str, str]
    """Labels that a pod must have, all of them."""
    ports: tuple[int, ...]

    @property
    def selector(self) -> dict[str, str]:
        """The labels as a parameter of the Kubernetes API."""
        return {"labelSelector": ",".join(f"{name}={value}" for name, value in sorted(self.labels.items()))}


def reason_unused(pod: Pod) -> str:
    """Return why a pod can take no requests; empty where it can."""
    if pod.ended:
        return f"its phase is {pod.status.phase}"
    if pod.metadata.is_terminating:
        return "it is terminating"
    if not pod.ready:
        return "it is not ready"
    if not is_ip(pod.status.pod_ip):
        return "it has no IP address"
    return ""


def endpoints_of(pod: Pod, ports: tuple[int, ...], *, boot_id: str = "", cluster: str = "") -> tuple[Endpoint, ...]:
    """Return the endpoints of a pod that can take requests, none of any other pod.

    The endpoint of the i-th port of the pool is named `<pod>-rank-<i>`, whether or not the pod serves on the ports
    before it.
    """
    if reason_unused(pod):
        return ()
    active = _active_ports(pod)
    return tuple(
        Endpoint(
            name=f"{pod.name}-rank-{rank}",
            address=pod.status.pod_ip,
            port=port,
            namespace=pod.metadata.namespace,
            labels=pod.metadata.labels,
            node=pod.spec.node_name,
            cluster=cluster,
            uid=pod.metadata.uid,
            boot_id=boot_id,
        )
        for rank, port in enumerate(ports)
        if active is None or port in active
    )


def _active_ports(pod: Pod) -> frozenset[int] | None:
    """Return the ports of the annotation, without words that are no numbers; None without an annotation."""
    text = next((pod.metadata.annotations[name] for name in ACTIVE_PORTS if name in pod.metadata.annotations), None)
    if text is None:
        return None
    words = (word.strip() for word in text.split(","))
    return frozenset(int(word) for word in words if _PORT.fullmatch(word))
