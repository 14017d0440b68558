# SPDX-License-Identifier: Apache-2.0
"""Writes `deploy/manifests/` from the Helm chart: `make manifests`. Helm is on the PATH or in KUBEBUILDER_ASSETS."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import yaml

from epp.kube.resources import CLUSTERS, binding, needs_of_hub, role

DEPLOY = Path(__file__).parents[1] / "deploy"
NAMESPACE = "model-serving"
POOL = "my-pool"
SERVERS = "router.modelServers.matchLabels.app=my-model-server"
UNGUARDED = "router.monitoring.prometheus.auth.enabled=false"
"""Who applies these files may not be allowed to create a ClusterRole."""
HUB_NAMESPACE = "open-cluster-management"
"""Namespace on a hub for the user that pickers log in as."""
KUBERNETES = "1.36.0"
"""Any version that the chart is for: nothing in it depends on the version."""


class Variant(NamedTuple):
    """One file: what it has, and the values that make it so."""

    summary: str
    values: tuple[str, ...] = ()


VARIANTS: Mapping[str, Variant] = {
    "gateway": Variant("An InferencePool and its picker, for a gateway that is there."),
    "gateway-leader-election": Variant(
        "The same with three pickers, of which one leads and the others wait.", ("router.epp.replicas=3",)
    ),
    "gateway-accelerators": Variant(
        "The same with one picker that reads nodes and GPU objects of the whole cluster.",
        ("router.epp.accelerators.clusterObjects=true",),
    ),
    "standalone": Variant(
        "A picker with an Envoy beside it, without a gateway and without custom resources.",
        ("router.proxy.enabled=true", "router.inferencePool.create=false"),
    ),
}

_HEADER = """\
# {summary}
#
#   sed 's/{namespace}/NAMESPACE/; s/my-model-server/LABEL/' {name}.yaml | kubectl apply -f -
#
# Namespace     {namespace}; it must exist.
# Model servers the pods with the label app=my-model-server, on port 8000.
# Pool          {pool}; names of other objects begin so.
# Image         inference-epp:0.1.0, from deploy/Dockerfile: there is no public one.
#
# Written by `make manifests` from deploy/chart, which has more to choose; a test compares the two.
"""


HUB_READER = "hub-reader"
_HUB_HEADER = """\
# A user of a hub of Open Cluster Management that may read what a picker elsewhere needs, and nothing more.
#
#   kubectl --context HUB apply -f hub-reader.yaml
#
# Namespace     {namespace}; it must exist on the hub.
# Kubeconfig    the hub's address and certificate authority, and the token of the Secret {name}: docs/clusters.md has
#               the commands that write it, and the Secret of the picker.
#
# Written by `make manifests` from the rights that the picker uses; a test compares the two.
"""


def hub_reader() -> str:
    """Return the text of the file with the rights on a hub."""
    place = {"name": HUB_READER, "namespace": HUB_NAMESPACE}
    granted = role(HUB_READER, (need for need in needs_of_hub() if need.resource in CLUSTERS))
    user = f"system:serviceaccount:{HUB_NAMESPACE}:{HUB_READER}"
    account = {"kubernetes.io/service-account.name": HUB_READER}
    documents = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": place},
        granted,
        binding(granted, HUB_READER, user),
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {**place, "annotations": account},
            "type": "kubernetes.io/service-account-token",
        },
    ]
    header = _HUB_HEADER.format(namespace=HUB_NAMESPACE, name=HUB_READER)
    return header + yaml.safe_dump_all(documents, explicit_start=True, sort_keys=False)


def manifest(helm: Path, name: str) -> str:
    """Return the text of one file."""
    variant = VARIANTS[name]
    settings = [word for value in (SERVERS, UNGUARDED, *variant.values) for word in ("--set", value)]
    where = ["--namespace", NAMESPACE, "--kube-version", KUBERNETES]
    rendered = subprocess.run(
        [helm, "template", POOL, DEPLOY / "chart", *where, *settings], check=True, capture_output=True, text=True
    ).stdout
    text = re.sub(r"^# Source: .*\n", "", rendered, flags=re.MULTILINE)
    header = _HEADER.format(summary=variant.summary, namespace=NAMESPACE, name=name, pool=POOL)
    return header + text


def helm_program() -> Path | None:
    """Return Helm's path, if it is there."""
    places = [os.environ.get("KUBEBUILDER_ASSETS", ""), os.environ.get("PATH", "")]
    found = shutil.which("helm", path=os.pathsep.join(place for place in places if place))
    return Path(found) if found else None


def main() -> int:
    """Write all files."""
    helm = helm_program()
    if helm is None:
        print("no helm on the PATH or in KUBEBUILDER_ASSETS: install it, or run `make kube-assets`", file=sys.stderr)  # noqa: T201  for whoever runs this
        return 1
    (DEPLOY / "manifests").mkdir(exist_ok=True)
    for name in VARIANTS:
        (DEPLOY / "manifests" / f"{name}.yaml").write_text(manifest(helm, name), encoding="utf-8")
    (DEPLOY / "manifests" / f"{HUB_READER}.yaml").write_text(hub_reader(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
