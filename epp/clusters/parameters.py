# SPDX-License-Identifier: Apache-2.0
"""Parameters of the cluster tagger."""

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from epp.clusters.decisions import Evaluate
from epp.clusters.usage import UsageItem
from epp.framework.clusters import CLUSTER_LABELS
from epp.framework.plugin import Parameters
from epp.framework.quantities import parse_duration


class ClusterTaggerParameters(Parameters, frozen=True):
    """Sources of objects, and what is computed of them."""

    read_cluster: bool = True
    """Read these objects from the Kubernetes cluster of the pool as well, where there is one, such as a hub: those that
    are installed, and that the picker may list and watch. Of two objects with one name, the one in a file counts."""
    paths: tuple[str, ...] = ()
    """Files, or directories of files (.yaml, .yml, .json), with objects of a hub: AddOnPlacementScore, ManagedCluster,
    ManagedClusterSet, ManagedClusterSetBinding, Placement, PlacementDecision, AdmissionCheck, MultiKueueCluster,
    MultiKueueConfig, InferencePoolImport; with `usageScores` also Node, Pod, ResourceSlice and ResourceClaim of the
    local cluster. A file can have several documents."""
    watch_files: bool = True
    """Apply new versions of the files as soon as they are written, all at once."""
    missing_file_grace_period: str = "5m"
    """Time for which the objects of a missing or empty file stay in effect: `0s` removes them at once."""
    cluster: str = ""
    """Name of the local cluster: that of endpoints without a cluster."""
    cluster_labels: Annotated[tuple[str, ...], Meta(max_length=16)] = CLUSTER_LABELS
    """Labels of an endpoint that name its cluster, where the endpoint itself has none; the first one that is there."""
    evaluate: Evaluate = "auto"
    """Evaluation of placements by this picker: of those without a PlacementDecision (`auto`), of all (`always`), or of
    none (`never`)."""
    usage_scores: bool = False
    """Compute the scores `resource-usage-score` of the local cluster from its nodes and pods, where the hub has none.
    In a cluster, this needs the right to list and watch pods and resource claims in all namespaces."""
    usage_items: Mapping[str, UsageItem] = msgspec.field(default_factory=dict)
    """Items of these scores, besides `cpu`, `mem`, `gpu` and `tpu`, or in place of those: each is two scores, with the
    endings `NodeAvailable` and `ClusterAvailable`."""

    def __post_init__(self) -> None:
        """Check the duration; raises ValueError."""
        try:
            parse_duration(self.missing_file_grace_period)
        except ValueError as error:
            raise ValueError(f"missingFileGracePeriod: {error}") from None
