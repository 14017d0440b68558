# SPDX-License-Identifier: Apache-2.0
"""Open Cluster Management: clusters, sets, scores, placement decisions and scorers; clusters of MultiKueue."""

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Literal

import msgspec

from epp.framework.clusters import MOST_SCORE, ClusterTaint, TaintEffect
from epp.kube.objects.base import ClusterObject, Condition, Faults, Object, Part, condition_of, convert, quantity_of
from epp.kube.objects.core import LabelSelector

OCM = "cluster.open-cluster-management.io"
CLUSTER_SET_LABEL = f"{OCM}/clusterset"
PLACEMENT_LABEL = f"{OCM}/placement"
_GROUP_NAME_LABEL = f"{OCM}/decision-group-name"
_GROUP_INDEX_LABEL = f"{OCM}/decision-group-index"
_MOST_ITEMS = 1000
_EFFECTS = tuple(str(effect) for effect in TaintEffect)
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
    allocatable: Mapping[str, Fraction] = msgspec.field(default_factory=dict)
    capacity: Mapping[str, Fraction] = msgspec.field(default_factory=dict)
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
    score: float | None = None


class PlacementDecision(Object, frozen=True, kw_only=True):
    """A page of the decisions of a placement."""

    placement: str
    group: str = ""
    """Name of the decision group, or its index if it has no name."""
    decisions: tuple[ClusterDecision, ...] = ()
    faults: tuple[str, ...] = ()


class _Item(Part, frozen=True, kw_only=True):
    name: Any = None
    value: Any = None


class _RawScore(Object, frozen=True, kw_only=True):
    scores: tuple[_Item, ...] = msgspec.field(default=(), name="status.scores")
    valid_until: Any = msgspec.field(default=None, name="status.validUntil")


def read_score(document: object) -> AddOnPlacementScore:
    """Return the scores; if a name occurs several times, the last score is used. Raises ValueError."""
    found, faults = convert(document, _RawScore), Faults()
    if not found.metadata.namespace:
        raise ValueError("metadata.namespace is missing: write the name of the cluster")
    scores: dict[str, float] = {}
    for index, item in enumerate(found.scores[:_MOST_ITEMS]):
        place = f"status.scores[{index}]"
        if not isinstance(item.name, str) or not item.name:
            faults.add(f"{place}.name", item.name, "write the name of the score, in quotes if it is a number")
            continue
        if item.name in scores:
            faults.add(f"{place}.name", item.name, "write each name once; the last one is used")
        value = faults.number(f"{place}.value", item.value, -MOST_SCORE, MOST_SCORE)
        if value is not None:
            scores[item.name] = value
    if len(found.scores) > _MOST_ITEMS:
        faults.add("status.scores", f"{len(found.scores)} items", f"write at most {_MOST_ITEMS}")
    until = faults.time("status.validUntil", found.valid_until)
    return AddOnPlacementScore(metadata=found.metadata, scores=scores, valid_until=until, faults=faults.found)


class _Taint(Part, frozen=True, kw_only=True):
    key: str
    value: str = ""
    effect: Any = None
    time_added: Any = None


class _Claim(Part, frozen=True, kw_only=True):
    name: str
    value: str = ""


class _RawCluster(ClusterObject, frozen=True, kw_only=True):
    taints: tuple[_Taint, ...] = msgspec.field(default=(), name="spec.taints")
    claims: tuple[_Claim, ...] = msgspec.field(default=(), name="status.clusterClaims")
    allocatable: Mapping[str, Any] = msgspec.field(default_factory=dict, name="status.allocatable")
    capacity: Mapping[str, Any] = msgspec.field(default_factory=dict, name="status.capacity")
    conditions: tuple[Condition, ...] = msgspec.field(default=(), name="status.conditions")


def read_managed_cluster(document: object) -> ManagedCluster:
    found, faults = convert(document, _RawCluster), Faults()
    taints: list[ClusterTaint] = []
    for index, taint in enumerate(found.taints):
        place = f"spec.taints[{index}]"
        effect = faults.choice(f"{place}.effect", taint.effect, _EFFECTS)
        since = faults.time(f"{place}.timeAdded", taint.time_added)
        if effect is not None:
            taints.append(ClusterTaint(key=taint.key, value=taint.value, effect=TaintEffect(effect), since=since))
    return ManagedCluster(
        metadata=found.metadata,
        taints=tuple(taints),
        claims={claim.name: claim.value for claim in found.claims},
        allocatable=_amounts("status.allocatable", found.allocatable, faults),
        capacity=_amounts("status.capacity", found.capacity, faults),
        conditions=found.conditions,
        faults=faults.found,
    )


def _amounts(field: str, values: Mapping[str, object], faults: Faults) -> dict[str, Fraction]:
    found: dict[str, Fraction] = {}
    for name, value in values.items():
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            try:
                amount = quantity_of(value)
            except ValueError:
                amount = Fraction(-1)
            if amount >= 0:
                found[name] = amount
                continue
        faults.add(f"{field}[{name}]", value, "write a quantity of at least 0, such as 96 or 512Gi")
    return found


class _Decision(Part, frozen=True, kw_only=True):
    cluster_name: str
    score: Any = None


class _RawPage(Object, frozen=True, kw_only=True):
    decisions: tuple[_Decision, ...] = msgspec.field(default=(), name="status.decisions")


def read_placement_decision(document: object) -> PlacementDecision:
    """Return the page; raises ValueError, also for a missing placement label."""
    found, faults = convert(document, _RawPage), Faults()
    labels = found.metadata.labels
    name = labels.get(PLACEMENT_LABEL, "")
    if not name:
        raise ValueError(f"metadata.labels[{PLACEMENT_LABEL}] is missing: write the name of the placement")
    decisions: list[ClusterDecision] = []
    for index, each in enumerate(found.decisions):
        score = each.score
        if score is not None:
            score = faults.number(f"status.decisions[{index}].score", score, -1e12, 1e12)
        if each.cluster_name:  # empty if no cluster was found
            decisions.append(ClusterDecision(cluster_name=each.cluster_name, score=score))
    return PlacementDecision(
        metadata=found.metadata,
        placement=f"{found.metadata.namespace or 'default'}/{name}",
        group=labels.get(_GROUP_NAME_LABEL) or labels.get(_GROUP_INDEX_LABEL, ""),
        decisions=tuple(decisions),
        faults=faults.found,
    )


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
_MOST_MASKS = 10_000


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

    masks: tuple[Mask, ...] = msgspec.field(default=(), name="spec.masks")


def read_dynamic_scorer(document: object) -> DynamicScorer:
    found = convert(document, DynamicScorer)
    check_config(found.spec, "spec.")
    if found.spec.config_sync_mode == "Full" and not is_url(found.spec.config_url):
        raise ValueError(f"spec.configURL is {found.spec.config_url!r:.80}: write a URL, or configSyncMode: None")
    if found.spec.config_sync_mode != "Full" and not found.spec.scoring.host:
        raise ValueError("spec.scoring.host is missing: write the URL of the scorer")
    return found


def read_dynamic_scoring_config(document: object) -> DynamicScoringConfig:
    found = convert(document, DynamicScoringConfig)
    if len(found.masks) > _MOST_MASKS:
        raise ValueError(f"spec.masks has {len(found.masks)} entries: write at most {_MOST_MASKS}")
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
