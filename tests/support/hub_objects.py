# SPDX-License-Identifier: Apache-2.0
"""Objects of a hub, short to write in tests."""

from collections.abc import Mapping, Sequence

from epp.kube.objects.decode import CLUSTER_KINDS, decode_object
from epp.kube.objects.last_good import FileObjects
from epp.pool.clusters.cluster_status import Hub
from tests.support.kube.manifests import manifest

OCM = "cluster.open-cluster-management.io"
SCORE = "resource-usage-score"


def cluster(
    name: str,
    *,
    labels: Mapping[str, str] | None = None,
    claims: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, object]] = (),
    **allocatable: str,
) -> dict:
    declared = [{"name": key, "value": value} for key, value in (claims or {}).items()]
    metadata, spec = {"labels": dict(labels or {})}, {"taints": list(taints)}
    status = {"allocatable": allocatable, "clusterClaims": declared}
    return manifest(f"{OCM}/v1", "ManagedCluster", name, metadata=metadata, spec=spec, status=status)


def taint(effect: str, key: str = "maintenance", value: str = "", added: str = "2026-01-01T00:00:00Z") -> dict:
    return {"key": key, "value": value, "effect": effect, "timeAdded": added}


def scores(cluster: str, until: str = "", *, name: str = SCORE, **values: float) -> dict:
    status: dict[str, object] = {"scores": [{"name": key, "value": value} for key, value in values.items()]}
    if until:
        status["validUntil"] = until
    return manifest(f"{OCM}/v1alpha1", "AddOnPlacementScore", name, cluster, status=status)


def placement(name: str = "llm", **spec: object) -> dict:
    return manifest(f"{OCM}/v1beta1", "Placement", name, "ai", spec=spec)


def weighted(mode: str = "Exact", **weights: float) -> dict:
    """Return a prioritizer policy: `Steady=1` for a built-in prioritizer, `gpuClusterAvailable=3` for a score."""

    def coordinate(name: str) -> dict:
        if name[0].isupper():
            return {"type": "BuiltIn", "builtIn": name}
        return {"type": "AddOn", "addOn": {"resourceName": SCORE, "scoreName": name}}

    return {
        "mode": mode,
        "configurations": [{"scoreCoordinate": coordinate(name), "weight": each} for name, each in weights.items()],
    }


def decision(
    *clusters: str,
    of: str = "llm",
    page: int = 1,
    namespace: str = "ai",
    group: str = "",
    index: int = 0,
    totals: Mapping[str, int] | None = None,
) -> dict:
    labels = {f"{OCM}/placement": of, f"{OCM}/decision-group-index": str(index)}
    if group:
        labels[f"{OCM}/decision-group-name"] = group
    decisions = [
        {"clusterName": each, "reason": "", **({"score": totals[each]} if totals else {})} for each in clusters
    ]
    about = {"metadata": {"labels": labels}, "status": {"decisions": decisions}}
    return manifest(f"{OCM}/v1beta1", "PlacementDecision", f"{of}-decision-{page}", namespace, **about)


def hub_of(*documents: dict) -> Hub:
    return Hub([FileObjects(file="hub.yaml").take(documents, kinds=CLUSTER_KINDS)])


def decoded(document: dict):
    found = decode_object(document)
    assert found is not None
    return found
