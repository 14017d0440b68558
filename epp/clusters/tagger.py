# SPDX-License-Identifier: Apache-2.0
"""The cluster tagger: tags every endpoint with the status of its cluster, from objects of a hub."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, NamedTuple

import msgspec
import structlog
from msgspec import Meta

from epp.clusters.cluster_status import ClusterStatuses, Evaluate, cluster_statuses
from epp.clusters.hub import Hub
from epp.clusters.placement import Explanation
from epp.clusters.usage import USAGE_ITEMS, UsageItem, usage_scores
from epp.framework.cluster import ObjectKind, ObjectReader, ObjectsOfKind
from epp.framework.clusters import CLUSTER, CLUSTER_LABELS, cluster_of
from epp.framework.datalayer import AffectedEndpoints, FollowingTagger, Report, no_endpoint
from epp.framework.durations import parse_duration
from epp.framework.endpoint import Endpoint
from epp.framework.inputs import InputState
from epp.framework.plugin import Parameters
from epp.framework.plugin_metrics import PluginMetric, Sample
from epp.kube.objects.decode import CLUSTER_KINDS, Kinds, decode_object
from epp.kube.objects.followed import Change, FollowedObjects
from epp.kube.objects.last_good import FileObjects

_KINDS = tuple(ObjectKind(group, kind) for group, kind in sorted(CLUSTER_KINDS))
_USAGE_KINDS = (
    ObjectKind("", "Node"),
    ObjectKind("", "Pod", everywhere=True),
    ObjectKind("resource.k8s.io", "ResourceSlice"),
    ObjectKind("resource.k8s.io", "ResourceClaim", everywhere=True),
)
_USAGE_SECONDS = 5.0
"""Pause between two computations of usage: the pods of a large cluster change all the time."""
_LONGEST_WAIT_SECONDS = 1.0
"""The time of day may be set back or forward: it is looked at once a second."""
_SHORTEST_WAIT_SECONDS = 0.1
_MOST_WARNINGS = 100
_NO_PODS = (
    "usageScores needs the pods of the cluster, and none is known: allow list and watch of pods in all namespaces, \
or add the pods to the files"
)
_SCORES = PluginMetric(
    "cluster_scores", "Scores of clusters: valid, expired, or missing where a placement asks for them.", ("state",)
)
_PROBLEMS = PluginMetric("cluster_object_problems", "Values and objects on clusters that are not used.")

_log = structlog.get_logger()


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


class _Usage(NamedTuple):
    scores: Mapping[str, float]
    at: float
    """When they were computed, by the clock."""
    due: bool = False
    """Whether they are to be computed again."""


class _State(NamedTuple):
    """What is known at one moment."""

    hub: Hub
    usage: _Usage
    statuses: ClusterStatuses
    without_pods: bool = False
    """Whether usage is to be computed, and no pods are known."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences on objects in effect."""
        return (*self.hub.remarks, _NO_PODS) if self.without_pods else self.hub.remarks

    @property
    def problems(self) -> tuple[str, ...]:
        """All sentences on objects, those not in effect included."""
        return (*self.hub.problems, _NO_PODS) if self.without_pods else self.hub.problems


class ClusterTagger(FollowingTagger[ClusterTaggerParameters], ObjectReader[ClusterTaggerParameters]):
    """Tags endpoints with what a hub of Open Cluster Management says of their cluster.

    That is its scores, the placements that chose it, its taints, labels and claims, and whether multi-cluster queueing
    (MultiKueue) can use it. Placements without decisions are evaluated here, as the hub would.

    An impossible value, such as a score of 400, is left out, said once in the log and counted; the rest of its object
    is used. An invalid version of a file or of an object changes nothing: the previous version stays in effect, and the
    log, `/healthz` and `llm_d_epp_input_problems` have the reason.

    A change takes effect at once for the endpoints of the clusters that it concerns, and so does the end of the time
    for which a score, or a toleration, holds.
    """

    plugin_type = "cluster-data-source"
    writes = (CLUSTER,)
    metrics = (_SCORES, _PROBLEMS)
    decode = staticmethod(decode_object)

    def setup(self) -> None:
        """Read the files for the first time; raises ConfigurationError or ValueError for an invalid path."""
        own: Kinds = (
            frozenset((kind.group, kind.kind) for kind in _USAGE_KINDS) if self._computes_usage else frozenset()
        )
        self._objects = FollowedObjects(
            self.parameters.paths,
            owner=self.name,
            grace_period=self.parameters.missing_file_grace_period,
            kinds=CLUSTER_KINDS | own,
        )
        self._items = {**USAGE_ITEMS, **self.parameters.usage_items}
        self._state = _State(Hub(), _Usage({}, self.clock.now()), ClusterStatuses())
        self._changing = asyncio.Lock()
        """Files, cluster and time change the state one after the other."""
        self._said: frozenset[tuple[str, str, str]] = frozenset()
        self._read_first()

    def read_files(self, paths: Sequence[str]) -> None:
        """Read these files after those of the parameters."""
        if paths:
            self._objects.read_also(paths, "--objects")
            self._read_first()

    def _read_first(self) -> None:
        if (change := self._objects.read(self.clock.now())) is not None:
            self._apply(self._after(change.files, usage=True), change)

    @property
    def _computes_usage(self) -> bool:
        return self.parameters.usage_scores

    @property
    def inputs(self) -> InputState:
        """Files and objects whose newest versions are not in effect, and values that objects are used without.

        Those of the cluster are under its name.
        """
        return replace(self._objects.inputs, ignored=self._state.hub.ignored, remarks=self._state.remarks)

    @property
    def kinds(self) -> Sequence[ObjectKind]:
        """Kinds of the hub, and the kinds for computing usage."""
        if not self.parameters.read_cluster:
            return ()
        return (*_KINDS, *_USAGE_KINDS) if self._computes_usage else _KINDS

    def can_read(self, kind: ObjectKind) -> bool:
        """Return whether it is one of these kinds."""
        return kind[:2] in {each[:2] for each in (*_KINDS, *_USAGE_KINDS)}

    @property
    def samples(self) -> Sequence[Sample]:
        """Scores by state, and the number of problems."""
        state = self._state
        known = state.statuses.known.values()
        return (
            Sample(_SCORES, sum(len(each.scores) for each in known), ("valid",)),
            Sample(_SCORES, sum(len(each.expired) for each in known), ("expired",)),
            Sample(_SCORES, len(state.statuses.missing), ("missing",)),
            Sample(_PROBLEMS, len(state.problems)),
        )

    @property
    def problems(self) -> tuple[str, ...]:
        """Values and objects that are not used: object, field, value and remedy of each."""
        return self._state.problems

    @property
    def explanations(self) -> Mapping[str, Explanation]:
        """How each placement that is evaluated here chose."""
        decided = self._state.statuses.decided.items()
        return {name: each.evaluation.explanation for name, each in decided if each.evaluation is not None}

    def tag(self, endpoint: Endpoint) -> Report:
        """Return the status of the endpoint's cluster."""
        cluster = self.cluster_of(endpoint)
        status = self._state.statuses.of(cluster)
        if cluster == self.parameters.cluster:
            status = msgspec.structs.replace(status, local=True)
        return Report(attributes={CLUSTER: status})

    def cluster_of(self, endpoint: Endpoint) -> str:
        """Return the name of its cluster: its own, that of a label, or the local one."""
        return cluster_of(endpoint, self.parameters.cluster_labels, self.parameters.cluster)

    async def follow(self, changed: Callable[[AffectedEndpoints], None]) -> None:
        """Apply new versions of the files, and what time changes, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_time(changed))
            if self._objects.paths and self.parameters.watch_files:
                tasks.create_task(self._follow_files(changed))

    async def look(self) -> AffectedEndpoints:
        """Read the files; return the endpoints whose status changed."""
        async with self._changing:
            change = await asyncio.to_thread(self._objects.read, self.clock.now())
            if change is None:
                return no_endpoint
            concerns = self._apply(await asyncio.to_thread(self._after, change.files, usage=True), change)
        _log.info("cluster objects updated", plugin=self.name, problems=len(self.problems))
        return concerns

    async def pass_time(self) -> AffectedEndpoints:
        """Take note of the time; return the endpoints whose status changed with it."""
        async with self._changing:
            return self._apply(await asyncio.to_thread(self._after, None, usage=self._state.usage.due))

    async def objects_changed(self, kinds: Sequence[ObjectsOfKind]) -> AffectedEndpoints:
        """Take objects of the cluster; return the endpoints whose status changed."""
        async with self._changing:
            change = await asyncio.to_thread(self._objects.take, kinds)
            recent = self.clock.now() - self._state.usage.at < _USAGE_SECONDS and bool(self._state.usage.scores)
            return self._apply(await asyncio.to_thread(self._after, change.files, usage=not recent), change)

    async def _follow_files(self, changed: Callable[[AffectedEndpoints], None]) -> None:
        async for _ in self._objects.changes():
            changed(await self.look())

    async def _follow_time(self, changed: Callable[[AffectedEndpoints], None]) -> None:
        while True:
            wait = self._seconds_left()
            if wait <= 0:
                changed(await self.pass_time())
            await asyncio.sleep(min(max(wait, _SHORTEST_WAIT_SECONDS), _LONGEST_WAIT_SECONDS))

    def _seconds_left(self) -> float:
        """Return the time until something changes by itself; a long time if nothing does."""
        state = self._state
        until = state.statuses.until
        left = _LONGEST_WAIT_SECONDS if until is None else until - self.clock.utc()
        if state.usage.due:
            left = min(left, state.usage.at + _USAGE_SECONDS - self.clock.now())
        return left

    def _after(self, files: Iterable[FileObjects] | None, *, usage: bool) -> tuple[_State, AffectedEndpoints]:
        """Return the state with these objects (None for the same ones), at this time. Runs in a thread."""
        before = self._state
        hub = before.hub if files is None else Hub.build(files)
        used = before.usage._replace(due=self._computes_usage)
        if self._computes_usage and usage:
            used = _Usage(self._usage_of(hub), self.clock.now())
        found = cluster_statuses(
            hub,
            before.statuses,
            self.clock.utc(),
            local=self.parameters.cluster,
            usage=used.scores,
            evaluate=self.parameters.evaluate,
        )
        differs = found.differ_from(before.statuses)
        concerns = no_endpoint if differs is None else lambda endpoint: differs(self.cluster_of(endpoint))
        without_pods = self._computes_usage and bool(hub.nodes) and not hub.pods
        return _State(hub, used, found, without_pods), concerns

    def _usage_of(self, hub: Hub) -> Mapping[str, float]:
        if not hub.pods:
            return {}
        return usage_scores(
            hub.nodes.values(), hub.pods.values(), hub.slices.values(), hub.claims.values(), self._items
        )

    def _apply(self, after: tuple[_State, AffectedEndpoints], change: Change | None = None) -> AffectedEndpoints:
        self._state, concerns = after
        if change is not None:
            self._objects.apply(change)
        self._objects.tell(self._state.problems)
        self._say()
        return concerns

    def _say(self) -> None:
        """Log each score that expired, or that a placement misses, once for as long as that is so."""
        found = self._state.statuses
        missing = {("missing", *each) for each in found.missing}
        expired = {("expired", cluster, score) for cluster, each in found.known.items() for score in each.expired}
        new = sorted((missing | expired) - self._said)
        self._said = frozenset(missing | expired)
        for what, cluster, score in new[:_MOST_WARNINGS]:
            remedy = "it counts as 0; see that its add-on runs in the cluster"
            _log.warning(f"cluster score {what}", plugin=self.name, cluster=cluster, score=score, effect=remedy)
