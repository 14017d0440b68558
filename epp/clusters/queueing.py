# SPDX-License-Identifier: Apache-2.0
"""Whether multi-cluster queueing can use a cluster, by its admission checks."""

from collections import defaultdict
from collections.abc import Mapping

from epp.clusters.decisions import Decided
from epp.clusters.hub import Hub
from epp.kube.objects.multikueue import AdmissionCheck


def active_clusters(hub: Hub, decided: Mapping[str, Decided]) -> dict[str, bool]:
    """Return, for the clusters of admission checks and MultiKueueClusters, whether an active check can use them.

    A check names a MultiKueueConfig or a Placement. A cluster whose own condition Active is False is not active,
    whatever its checks say.
    """
    own = {each.cluster: each.status.active for each in hub.kueue_clusters.values()}
    checks: defaultdict[str, list[bool]] = defaultdict(list)
    for check in hub.checks.values():
        for cluster in _clusters_of(check, hub, decided):
            checks[cluster].append(check.status.active is True)
    found = {cluster: any(states) for cluster, states in checks.items()}
    found.update({cluster: False for cluster, state in own.items() if state is False})
    return found


def _clusters_of(check: AdmissionCheck, hub: Hub, decided: Mapping[str, Decided]) -> frozenset[str]:
    parameters = check.spec.parameters
    if parameters.kind == "Placement":  # in the namespace of Kueue, which the check does not name
        placements = {*hub.placements, *hub.pages}
        named = [decided[name] for name in placements if name.rpartition("/")[2] == parameters.name]
        return frozenset(cluster for each in named for cluster in each.clusters)
    config = hub.kueue_configs.get(parameters.name) if parameters.kind == "MultiKueueConfig" else None
    names = () if config is None else config.spec.clusters
    found = (hub.kueue_clusters.get(name) for name in names)
    return frozenset(name if each is None else each.cluster for name, each in zip(names, found, strict=True))
