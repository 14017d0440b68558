# SPDX-License-Identifier: Apache-2.0
"""The cluster tagger: tags every endpoint with the status of its cluster, from objects of a hub."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import structlog
from msgspec import Meta

from epp.framework.cluster_objects import HubAccess, ObjectKind, ObjectsOfKind
from epp.framework.clusters import CLUSTER, CLUSTER_LABELS, cluster_of
from epp.framework.datalayer import AffectedEndpoints, Report, Tagger, no_endpoint
from epp.framework.endpoint import Endpoint
from epp.framework.limits import NonNegative
from epp.framework.plugin import Parameters
from epp.framework.plugin_status import InputState, PluginMetric, Sample
from epp.framework.quantities import duration_setting
from epp.kube.access import KubeApi
from epp.kube.objects.decode import CLUSTER_KINDS, Kinds
from epp.kube.objects.followed import Change, Effect, FollowsObjects
from epp.pool.clusters.cluster_status import (
    ClusterStatuses,
    DeclaredNetwork,
    Evaluate,
    Hub,
    cluster_statuses,
    declared_networks,
)
from epp.pool.clusters.placement import Explanation
from epp.pool.clusters.usage import USAGE_ITEMS, UsageItem, usage_scores

_KINDS = tuple(ObjectKind(group, kind) for group, kind in sorted(CLUSTER_KINDS))
_USAGE_KINDS = (
    ObjectKind("", "Node"),
    ObjectKind("", "Pod", everywhere=True),
    ObjectKind("resource.k8s.io", "ResourceSlice"),
    ObjectKind("resource.k8s.io", "ResourceClaim", everywhere=True),
)
_USAGE_SECONDS = 5.0
"""Minimum pause between two computations of usage, since the pods of a large cluster change constantly."""
_LONGEST_WAIT_SECONDS = 1.0
"""Interval of checks of the wall clock, which may be set back or forward."""
_SHORTEST_WAIT_SECONDS = 0.1
_MOST_WARNINGS = 100
_NO_PODS = (
    "usageScores needs the pods of the cluster, but there are no pods: allow list and watch of pods in all namespaces, "
    "or add the pods to the files"
)
_SCORES = PluginMetric(
    "cluster_scores", "Scores of clusters: valid, expired, or required by a placement but missing.", ("state",)
)
_PROBLEMS = PluginMetric("cluster_object_problems", "Values and objects on clusters that are not used.")

_log = structlog.get_logger()


class Network(Parameters, frozen=True):
    """The network between the local cluster and another cluster."""

    latency: str = ""
    """Time of a round trip, a duration such as `35ms`; by default measured by connections for polls."""
    cost: NonNegative | None = None
    """Dollars for a gigabyte to and from the cluster."""

    def __post_init__(self) -> None:
        self.declared  # noqa: B018  raises ValueError

    @property
    def declared(self) -> DeclaredNetwork:
        """The numbers; raises ValueError for a malformed duration."""
        seconds = duration_setting("latency", self.latency, positive=False) if self.latency else None
        return DeclaredNetwork(seconds, self.cost)


class HubSecret(Parameters, frozen=True):
    """A Secret with a kubeconfig."""

    name: Annotated[str, Meta(min_length=1, max_length=253)]
    """Name of the Secret."""
    namespace: str = ""
    """Namespace of the Secret; by default that of the pool."""
    key: str = ""
    """Key with the kubeconfig; by default `kubeconfig` or `value`."""


class ClusterTaggerParameters(Parameters, frozen=True):
    """Sources of objects, and computations on them."""

    read_cluster: bool = True
    """Also read these objects from the Kubernetes cluster of the pool, if it is a hub. Kinds that are not installed, or
    that the picker may not list and watch, are skipped. An object in a file replaces one with the same name."""
    kubeconfig: str = ""
    """Read these objects from another API server, the hub: a kubeconfig with its address and credentials, or the
    directory of a mounted Secret with one under the key `kubeconfig` or `value`. An object of the hub replaces one of
    the pool's cluster with the same name."""
    secret: HubSecret | None = None
    """Instead of `kubeconfig`: a Secret with a kubeconfig on the API server of the pool. New content is used for new
    requests. The picker must have the right to get, list and watch this Secret. The kubeconfig must not name files or
    commands."""
    context: str = ""
    """Context of the kubeconfig; by default its current context. Its namespace is read if access to all namespaces of
    the hub is forbidden."""
    paths: tuple[str, ...] = ()
    """Files, or directories of files (.yaml, .yml, .json), with objects of a hub: AddOnPlacementScore, ManagedCluster,
    ManagedClusterSet, ManagedClusterSetBinding, Placement, PlacementDecision, AdmissionCheck, MultiKueueCluster,
    MultiKueueConfig, InferencePoolImport; with `usageScores` also Node, Pod, ResourceSlice and ResourceClaim of the
    local cluster. A file can have several documents."""
    watch_files: bool = True
    """Apply new versions of all files together, within a second."""
    missing_file_grace_period: str = "5m"
    """Time for which the objects of a missing or empty file stay in effect: `0s` removes them immediately."""
    cluster: str = ""
    """Name of the local cluster, to which endpoints without a cluster belong."""
    cluster_labels: Annotated[tuple[str, ...], Meta(max_length=16)] = CLUSTER_LABELS
    """Labels with the cluster of an endpoint that has no cluster itself; the first existing label is used."""
    networks: Mapping[str, Network] = msgspec.field(default_factory=dict)
    """Network to each other cluster, by its name, for `cluster-score` and `work-seconds-scorer`."""
    latency_claim: str = ""
    """Claim or label of a ManagedCluster with the latency, for clusters without a latency in `networks`."""
    cost_claim: str = ""
    """Claim or label of a ManagedCluster with the cost in dollars per gigabyte, for clusters without a cost in
    `networks`."""
    evaluate: Evaluate = "auto"
    """Placements that this picker evaluates: those without a PlacementDecision (`auto`), all (`always`) or none
    (`never`)."""
    usage_scores: bool = False
    """Compute the scores `resource-usage-score` of the local cluster from its nodes and pods, unless the hub has them.
    The picker must have the right to list and watch pods and resource claims in all namespaces."""
    usage_items: Mapping[str, UsageItem] = msgspec.field(default_factory=dict)
    """Further items of these scores, or replacements for the items `cpu`, `mem`, `gpu` and `tpu`. Each item has two
    scores, with the suffixes `NodeAvailable` and `ClusterAvailable`."""

    def __post_init__(self) -> None:
        if self.kubeconfig and self.secret:
            raise ValueError("kubeconfig and secret both name the access to a hub: keep one of them")
        if self.context and not (self.kubeconfig or self.secret):
            raise ValueError("context has no effect without kubeconfig: write the path of the kubeconfig too")
        duration_setting("missingFileGracePeriod", self.missing_file_grace_period, positive=False)


class _Usage(NamedTuple):
    scores: Mapping[str, float]
    at: float
    """Time of the computation, by the clock."""
    due: bool = False


class _State(NamedTuple):
    """Objects, usage and statuses at one moment."""

    hub: Hub
    usage: _Usage
    statuses: ClusterStatuses
    networks: Mapping[str, DeclaredNetwork] = {}
    remarks: tuple[str, ...] = ()
    """Messages about objects in effect, claims that declare no network, and missing pods."""


class ClusterTagger(Tagger[ClusterTaggerParameters], FollowsObjects[ClusterTaggerParameters]):
    """Tags endpoints with the status of their cluster on a hub of Open Cluster Management.

    The status has scores, the placements that chose the cluster, taints, labels and claims, and whether multi-cluster
    queueing (MultiKueue) can use it. Placements without decisions are evaluated as on the hub.

    An impossible value, such as a score of 400, is ignored, logged once and counted; the rest of its object is used. An
    invalid version of a file or object has no effect: the previous version stays in effect, and the log, `/healthz` and
    `llm_d_epp_input_problems` have the reason.

    A change takes effect immediately for the endpoints of affected clusters; so does the expiry of a score or of a
    toleration.
    """

    plugin_type = "cluster-data-source"
    writes = (CLUSTER,)
    metrics = (_SCORES, _PROBLEMS)

    def setup(self) -> None:
        """Read the files and the kubeconfig; raises ConfigurationError or ValueError for an invalid path.

        The kubeconfig is read again when the hub refuses the credentials or does not answer.
        """
        given = self.parameters
        self._hub = None
        if given.secret is not None:
            namespace, name = given.secret.namespace, given.secret.name
            self._hub = HubAccess("", given.context, f"{namespace}/{name}" if namespace else name, given.secret.key)
        elif given.kubeconfig:
            self._hub = HubAccess(given.kubeconfig, given.context)
            KubeApi(Path(given.kubeconfig), context=given.context, setting="kubeconfig")
        own: Kinds = (
            frozenset((kind.group, kind.kind) for kind in _USAGE_KINDS) if self.parameters.usage_scores else frozenset()
        )
        self._items = {**USAGE_ITEMS, **self.parameters.usage_items}
        self._networks = {name: each.declared for name, each in given.networks.items()}
        self._state = _State(Hub(), _Usage({}, self.clock.now()), ClusterStatuses(), networks=self._networks)
        self._listeners: list[Callable[[], None]] = []
        self._logged: frozenset[tuple[str, str, str]] = frozenset()
        self.start_following(given.paths, CLUSTER_KINDS | own, grace_period=given.missing_file_grace_period)

    @property
    def hub(self) -> Hub:
        return self._state.hub

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` when objects or statuses may have changed; return a function that unsubscribes it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    @property
    def inputs(self) -> InputState:
        """Rejected versions of files and objects, and ignored values; the file of the cluster is `cluster`."""
        return replace(self._objects.inputs, ignored=self._state.hub.ignored, remarks=self._state.remarks)

    @property
    def kinds(self) -> Sequence[ObjectKind]:
        """Kinds of the hub and, if requested, kinds for usage."""
        of_hub = () if self._hub is None else tuple(kind._replace(hub=self._hub) for kind in _KINDS)
        if not self.parameters.read_cluster:
            return of_hub
        return (*_KINDS, *(_USAGE_KINDS if self.parameters.usage_scores else ()), *of_hub)

    def can_read(self, kind: ObjectKind) -> bool:
        return kind[:2] in {each[:2] for each in (*_KINDS, *_USAGE_KINDS)}

    @property
    def samples(self) -> Sequence[Sample]:
        state = self._state
        known = state.statuses.known.values()
        return (
            Sample(_SCORES, sum(len(each.scores) for each in known), ("valid",)),
            Sample(_SCORES, sum(len(each.expired) for each in known), ("expired",)),
            Sample(_SCORES, len(state.statuses.missing), ("missing",)),
            Sample(_PROBLEMS, len(self.inputs.sentences)),
        )

    @property
    def explanations(self) -> Mapping[str, Explanation]:
        decided = self._state.statuses.decided.items()
        return {name: each.evaluation.explanation for name, each in decided if each.evaluation is not None}

    def tag(self, endpoint: Endpoint) -> Report:
        cluster = self.cluster_of(endpoint)
        state = self._state
        status = state.statuses.of(cluster)
        if cluster == self.parameters.cluster:
            status = msgspec.structs.replace(status, local=True)
        elif (network := state.networks.get(cluster)) is not None:
            status = msgspec.structs.replace(status, latency=network.latency, transfer_cost=network.cost)
        return Report(attributes={CLUSTER: status})

    def cluster_of(self, endpoint: Endpoint) -> str:
        """Return the cluster of an endpoint: its own cluster, the cluster in a label, or the local cluster."""
        return cluster_of(endpoint, self.parameters.cluster_labels, self.parameters.cluster)

    async def follow(self, changed: Callable[[AffectedEndpoints], None]) -> None:
        """Apply new versions of the files and expired scores until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_time(changed))
            if self.parameters.watch_files:
                tasks.create_task(super().follow(changed))

    async def pass_time(self) -> AffectedEndpoints:
        """Apply changes due to time; return the endpoints whose status changed."""
        async with self._changing:
            state = self._state
            return (await asyncio.to_thread(self._effect, state.hub, usage=state.usage.due))()

    def effect_of(self, change: Change, kinds: Sequence[ObjectsOfKind] = ()) -> Effect:
        """Return the effect of these objects; usage is not computed for every change in the cluster."""
        last = self._state.usage
        is_recent = bool(kinds and last.scores) and self.clock.now() - last.at < _USAGE_SECONDS
        return self._effect(Hub(change.files), usage=not is_recent)

    async def _follow_time(self, changed: Callable[[AffectedEndpoints], None]) -> None:
        while True:
            usage, until = self._state.usage, self._state.statuses.until
            wait = _LONGEST_WAIT_SECONDS if until is None else until - self.clock.utc()
            if usage.due:
                wait = min(wait, usage.at + _USAGE_SECONDS - self.clock.now())
            if wait <= 0:
                changed(await self.pass_time())
            await asyncio.sleep(min(max(wait, _SHORTEST_WAIT_SECONDS), _LONGEST_WAIT_SECONDS))

    def _effect(self, hub: Hub, *, usage: bool) -> Effect:
        """Return the effect of the objects of the hub. Runs in a thread."""
        before = self._state
        used = before.usage._replace(due=self.parameters.usage_scores)
        if self.parameters.usage_scores and usage:
            scores = {}
            if hub.pods:
                scores = usage_scores(
                    hub.nodes.values(), hub.pods.values(), hub.slices.values(), hub.claims.values(), self._items
                )
            used = _Usage(scores, self.clock.now())
        found = cluster_statuses(
            hub,
            before.statuses,
            self.clock.utc(),
            local=self.parameters.cluster,
            usage=used.scores,
            evaluate=self.parameters.evaluate,
        )
        differs = found.differ_from(before.statuses)
        affected = no_endpoint if differs is None else lambda endpoint: differs(self.cluster_of(endpoint))
        without_pods = self.parameters.usage_scores and bool(hub.nodes) and not hub.pods
        claims = self.parameters.latency_claim, self.parameters.cost_claim
        networks, faults = declared_networks(hub, self._networks, claims)
        remarks = (*hub.remarks, *faults, *([_NO_PODS] if without_pods else ()))
        return partial(self._assign, _State(hub, used, found, networks, remarks), affected)

    def _assign(self, state: _State, affected: AffectedEndpoints) -> AffectedEndpoints:
        self._state = state
        for listener in tuple(self._listeners):
            listener()
        self._log_scores()
        return affected

    def _log_scores(self) -> None:
        """Log each expired or missing score once while the condition lasts."""
        found = self._state.statuses
        missing = {("missing", *each) for each in found.missing}
        expired = {("expired", cluster, score) for cluster, each in found.known.items() for score in each.expired}
        new = sorted((missing | expired) - self._logged)
        self._logged = frozenset(missing | expired)
        for what, cluster, score in new[:_MOST_WARNINGS]:
            remedy = "it counts as 0; check that its add-on runs in the cluster"
            _log.warning(f"cluster score {what}", plugin=self.name, cluster=cluster, score=score, effect=remedy)
