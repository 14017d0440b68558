# SPDX-License-Identifier: Apache-2.0
"""Open Cluster Management: clusters, sets, scores, placement decisions and scorers; clusters of MultiKueue."""

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from epp.framework.clusters import MOST_SCORE, ClusterTaint, TaintEffect
from epp.framework.input_errors import shown
from epp.framework.limits import Name
from epp.kube.objects.base import (
    ClusterObject,
    Condition,
    Object,
    Part,
    condition_of,
    convert,
    date_of,
    valid_entries,
    with_fields,
)
from epp.kube.objects.core import LabelSelector
from epp.kube.objects.limits import Amount, Limit

OCM = "cluster.open-cluster-management.io"
CLUSTER_SET_LABEL = f"{OCM}/clusterset"
PLACEMENT_LABEL = f"{OCM}/placement"
_GROUP_NAME_LABEL = f"{OCM}/decision-group-name"
_GROUP_INDEX_LABEL = f"{OCM}/decision-group-index"
_MOST_ITEMS = 1000
_SECRET_PREFIX = "multikueue-"  # noqa: S105  a name


class AddOnPlacementScore(Object, frozen=True, kw_only=True):
    """Scores of the cluster whose name is the namespace."""

    scores: Mapping[str, float] = msgspec.field(default_factory=dict)
    """Scores by name, -100..100."""
    valid_until: float | None = None
    """Seconds since the epoch; None for scores that do not expire."""
    faults: tuple[str, ...] = ()


class ManagedCluster(ClusterObject, frozen=True, kw_only=True):
    taints: tuple[ClusterTaint, ...] = ()
    claims: Mapping[str, str] = msgspec.field(default_factory=dict)
    allocatable: Mapping[str, Amount] = msgspec.field(default_factory=dict, name="status.allocatable")
    conditions: tuple[Condition, ...] = ()
    faults: tuple[str, ...] = ()


class ManagedClusterSet(ClusterObject, frozen=True, kw_only=True):
    selector_type: str = msgspec.field(default="", name="spec.clusterSelector.selectorType")
    label_selector: LabelSelector = msgspec.field(default=LabelSelector(), name="spec.clusterSelector.labelSelector")

    @property
    def selector(self) -> LabelSelector | None:
        """Selector of clusters; None if clusters have the label of the set."""
        return self.label_selector if self.selector_type == "LabelSelector" else None


class ManagedClusterSetBinding(Object, frozen=True, kw_only=True):
    """Allows the placements of a namespace to choose from a cluster set."""

    cluster_set: str = msgspec.field(name="spec.clusterSet")


class ClusterDecision(Part, frozen=True, kw_only=True):
    cluster_name: str
    """Empty if no cluster was found."""
    score: Annotated[float | None, Limit("write a number", least=-1e12, most=1e12)] = None


class PlacementDecision(Object, frozen=True, kw_only=True):
    """A page of the decisions of a placement."""

    decisions: tuple[ClusterDecision, ...] = msgspec.field(default=(), name="status.decisions")

    @property
    def placement(self) -> str:
        """`namespace/name` of the placement."""
        return f"{self.metadata.namespace}/{self.metadata.labels[PLACEMENT_LABEL]}"

    @property
    def group(self) -> str:
        """Name of the decision group, or its index if it has no name."""
        labels = self.metadata.labels
        return labels.get(_GROUP_NAME_LABEL) or labels.get(_GROUP_INDEX_LABEL, "")


def read_placement_decision(document: object) -> PlacementDecision:
    """Return the page; raises ValueError, also for a missing placement label."""
    found = convert(document, PlacementDecision)
    if not found.metadata.labels.get(PLACEMENT_LABEL):
        raise ValueError(f"metadata.labels[{PLACEMENT_LABEL}] is missing: write the name of the placement")
    return found


class _Score(Part, frozen=True, kw_only=True):
    name: Name
    value: Annotated[float, Meta(ge=-MOST_SCORE, le=MOST_SCORE)]


class _RawScores(Object, frozen=True, kw_only=True):
    scores: tuple[Any, ...] = msgspec.field(default=(), name="status.scores")
    valid_until: Any = msgspec.field(default=None, name="status.validUntil")


def read_score(document: object) -> AddOnPlacementScore:
    """Return the scores; if a name occurs several times, the last score is used. Raises ValueError."""
    raw, faults = convert(document, _RawScores), list[str]()
    if not raw.metadata.namespace:
        raise ValueError("metadata.namespace is missing: write the name of the cluster")
    scores: dict[str, float] = {}
    for each in valid_entries(_Score, raw.scores[:_MOST_ITEMS], "status.scores", faults):
        if each.name in scores:
            faults.append(f"status.scores has {each.name!r:.60} several times: write it once; the last one counts")
        scores[each.name] = each.value
    if len(raw.scores) > _MOST_ITEMS:
        faults.append(f"status.scores has {len(raw.scores)} entries: write at most {_MOST_ITEMS}")
    until = _seconds(raw.valid_until, "status.validUntil", faults)
    return AddOnPlacementScore(metadata=raw.metadata, scores=scores, valid_until=until, faults=tuple(faults))


def _seconds(date: object, place: str, faults: list[str]) -> float | None:
    """Return the date in seconds since the epoch; None without a date, and for a text that is none."""
    if date is None or date == "":
        return None
    found = date_of(date)
    if found is None:
        faults.append(f"{place} is {shown(date)}: write a date such as 2030-01-01T00:00:00Z")
        return None
    return found.timestamp()


class _Taint(Part, frozen=True, kw_only=True):
    key: str
    value: str = ""
    effect: TaintEffect
    time_added: Any = None


class _Claim(Part, frozen=True, kw_only=True):
    name: str
    value: str = ""


class _RawCluster(ClusterObject, frozen=True, kw_only=True):
    taints: tuple[Any, ...] = msgspec.field(default=(), name="spec.taints")
    claims: tuple[_Claim, ...] = msgspec.field(default=(), name="status.clusterClaims")
    allocatable: Mapping[str, Amount] = msgspec.field(default_factory=dict, name="status.allocatable")
    conditions: tuple[Condition, ...] = msgspec.field(default=(), name="status.conditions")


def read_managed_cluster(document: object) -> ManagedCluster:
    """Return the cluster without taints that do not fit, which are its faults; raises ValueError."""
    raw, faults = convert(document, _RawCluster), list[str]()
    taints = [
        ClusterTaint(
            key=each.key,
            value=each.value,
            effect=each.effect,
            since=_seconds(each.time_added, f"spec.taints[{each.key}].timeAdded", faults),
        )
        for each in valid_entries(_Taint, raw.taints, "spec.taints", faults)
    ]
    claims = {claim.name: claim.value for claim in raw.claims}
    return with_fields(ManagedCluster, raw, taints=tuple(taints), claims=claims, faults=tuple(faults))


class _WithConditions(ClusterObject, frozen=True, kw_only=True):
    conditions: tuple[Condition, ...] = msgspec.field(default=(), name="status.conditions")

    @property
    def active(self) -> bool | None:
        """Whether the condition Active is True; None if it is unknown."""
        found = condition_of(self.conditions, "Active")
        return {"True": True, "False": False}.get(found.status) if found is not None else None


class AdmissionCheck(_WithConditions, frozen=True, kw_only=True):
    """A check that a workload passes before it is admitted, and the object with its parameters."""

    parameters_kind: str = msgspec.field(default="", name="spec.parameters.kind")
    parameters_name: str = msgspec.field(default="", name="spec.parameters.name")


class MultiKueueConfig(ClusterObject, frozen=True, kw_only=True):
    """The MultiKueueClusters of an admission check, by name."""

    clusters: tuple[str, ...] = msgspec.field(default=(), name="spec.clusters")


class MultiKueueCluster(_WithConditions, frozen=True, kw_only=True):
    """A cluster of MultiKueue, described by a ClusterProfile or a Secret; before v1beta2 in the spec itself."""

    profile: str = msgspec.field(default="", name="spec.clusterSource.clusterProfileRef.name")
    location: str = msgspec.field(default="", name="spec.clusterSource.kubeConfig.location")
    old_profile: str = msgspec.field(default="", name="spec.clusterProfileRef.name")
    old_location: str = msgspec.field(default="", name="spec.kubeConfig.location")

    @property
    def cluster(self) -> str:
        """Name of the cluster on its hub: that of its profile or Secret, by default its own name."""
        for profile, location in ((self.profile, self.location), (self.old_profile, self.old_location)):
            if profile:
                return profile
            if location.startswith(_SECRET_PREFIX):
                return location.removeprefix(_SECRET_PREFIX)
        return self.name


DYNAMIC_SCORING = "dynamic-scoring.open-cluster-management.io"

_HOST = re.compile(r"https?://[^\s/@?#]+(/[^\s?#@]*)?")
_URL = re.compile(_HOST.pattern + r"(\?[^\s#@]*)?")
_PATH = re.compile(r"/[^\s?#]*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_MOST_SECONDS = 30 * 86_400.0


class SecretReference(Part, frozen=True, kw_only=True):
    name: str
    key: str


class Auth(Part, frozen=True, kw_only=True):
    """Bearer token."""

    token_secret_ref: SecretReference


class SourceParams(Part, frozen=True, kw_only=True):
    """Parameters of a Prometheus query."""

    query: str = ""
    """PromQL, several queries joined with `;`."""
    range: float = 60.0
    """Seconds before now."""
    step: float = 15.0
    """Seconds between two samples."""


class Source(Part, frozen=True, kw_only=True):
    type: Literal["Prometheus", "None", ""] = ""
    host: str = ""
    path: str = "/api/v1/query_range"
    params: SourceParams = SourceParams()
    auth: Auth | None = None


class ScoringParams(Part, frozen=True, kw_only=True):
    name: str = ""
    interval: float = 30.0


class Scoring(Part, frozen=True, kw_only=True):
    host: str = ""
    path: str = "/scoring"
    params: ScoringParams = ScoringParams()
    auth: Auth | None = None


class ScorerConfig(Part, frozen=True, kw_only=True):
    """Data source and scoring service, from an object or from the service itself."""

    source: Source = Source()
    scoring: Scoring = Scoring()


class ScorerSpec(ScorerConfig, frozen=True, kw_only=True):
    config_url: str = msgspec.field(default="", name="configURL")
    config_sync_mode: Literal["Full", "None", ""] = ""
    score_dimension_format: str = ""


class DynamicScorer(Object, frozen=True, kw_only=True):
    spec: ScorerSpec = ScorerSpec()

    @property
    def score_name(self) -> str:
        return self.spec.scoring.params.name or self.name


class Mask(Part, frozen=True, kw_only=True):
    """An ignored score of a cluster."""

    cluster_name: str
    score_name: str


class DynamicScoringConfig(Object, frozen=True, kw_only=True):
    """Ignored scores."""

    masks: Annotated[tuple[Mask, ...], Meta(max_length=10_000)] = msgspec.field(default=(), name="spec.masks")


def read_dynamic_scorer(document: object) -> DynamicScorer:
    found = convert(document, DynamicScorer)
    check_config(found.spec, "spec.")
    if found.spec.config_sync_mode == "Full" and not is_url(found.spec.config_url):
        raise ValueError(f"spec.configURL is {found.spec.config_url!r:.80}: write a URL, or configSyncMode: None")
    if found.spec.config_sync_mode != "Full" and not found.spec.scoring.host:
        raise ValueError("spec.scoring.host is missing: write the URL of the scorer")
    return found


def is_url(text: str) -> bool:
    """Return whether the text is an HTTP URL without credentials."""
    return _URL.fullmatch(text) is not None


def check_config(config: ScorerConfig, place: str = "") -> None:
    """Check addresses and times; raises ValueError with field, value and remedy."""
    parts: dict[str, Source | Scoring] = {"source": config.source, "scoring": config.scoring}
    for field, part in parts.items():
        if part.host and not _HOST.fullmatch(part.host):
            raise ValueError(f"{place}{field}.host is {part.host!r:.80}: write http:// or https:// with host and port")
        if not _PATH.fullmatch(part.path):
            raise ValueError(f"{place}{field}.path is {part.path!r:.80}: write a path that begins with a slash")
    for field, seconds in (
        ("source.params.range", config.source.params.range),
        ("source.params.step", config.source.params.step),
        ("scoring.params.interval", config.scoring.params.interval),
    ):
        if not (math.isfinite(seconds) and 1 <= seconds <= _MOST_SECONDS):
            raise ValueError(f"{place}{field} is {seconds:g}: write seconds, 1 to {_MOST_SECONDS:g}")
    for field, part in parts.items():
        secret = None if part.auth is None else part.auth.token_secret_ref
        if secret is not None and not (_NAME.fullmatch(secret.name) and _NAME.fullmatch(secret.key)):
            raise ValueError(f"{place}{field}.auth.tokenSecretRef: write name and key of an entry of a Secret")
