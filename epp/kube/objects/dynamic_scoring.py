# SPDX-License-Identifier: Apache-2.0
"""DynamicScorer and DynamicScoringConfig of Open Cluster Management: external scorers, and ignored scores."""

import math
import re
from typing import Literal

import msgspec

from epp.kube.objects.base import Object, Part, convert

DYNAMIC_SCORING = "dynamic-scoring.open-cluster-management.io"

_HOST = re.compile(r"https?://[^\s/@?#]+(/[^\s?#@]*)?")
_URL = re.compile(_HOST.pattern + r"(\?[^\s#@]*)?")
_PATH = re.compile(r"/[^\s?#]*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_MOST_SECONDS = 30 * 86_400.0
_MOST_MASKS = 10_000


class SecretReference(Part, frozen=True, kw_only=True):
    """An entry of a Secret."""

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
    """Source of the data for a score."""

    type: Literal["Prometheus", "None", ""] = ""
    host: str = ""
    path: str = "/api/v1/query_range"
    params: SourceParams = SourceParams()
    auth: Auth | None = None


class ScoringParams(Part, frozen=True, kw_only=True):
    """Name of the score, and interval of requests."""

    name: str = ""
    interval: float = 30.0


class Scoring(Part, frozen=True, kw_only=True):
    """Scoring service."""

    host: str = ""
    path: str = "/scoring"
    params: ScoringParams = ScoringParams()
    auth: Auth | None = None


class ScorerConfig(Part, frozen=True, kw_only=True):
    """Data source and scoring service, from an object or from the service itself."""

    source: Source = Source()
    scoring: Scoring = Scoring()


class ScorerSpec(ScorerConfig, frozen=True, kw_only=True):
    """Spec of an external scorer."""

    config_url: str = msgspec.field(default="", name="configURL")
    config_sync_mode: Literal["Full", "None", ""] = ""
    score_dimension_format: str = ""


class DynamicScorer(Object, frozen=True, kw_only=True):
    """An external scorer."""

    spec: ScorerSpec = ScorerSpec()

    @property
    def score_name(self) -> str:
        """Name of the score."""
        return self.spec.scoring.params.name or self.name


class Mask(Part, frozen=True, kw_only=True):
    """An ignored score of a cluster."""

    cluster_name: str
    score_name: str


class DynamicScoringConfig(Object, frozen=True, kw_only=True):
    """Ignored scores."""

    masks: tuple[Mask, ...] = msgspec.field(default=(), name="spec.masks")


def read_dynamic_scorer(document: object) -> DynamicScorer:
    """Return the object; raises ValueError."""
    found = convert(document, DynamicScorer)
    check_config(found.spec, "spec.")
    if found.spec.config_sync_mode == "Full" and not is_url(found.spec.config_url):
        raise ValueError(f"spec.configURL is {found.spec.config_url!r:.80}: write a URL, or configSyncMode: None")
    if found.spec.config_sync_mode != "Full" and not found.spec.scoring.host:
        raise ValueError("spec.scoring.host is missing: write the URL of the scorer")
    return found


def read_dynamic_scoring_config(document: object) -> DynamicScoringConfig:
    """Return the object; raises ValueError."""
    found = convert(document, DynamicScoringConfig)
    if len(found.masks) > _MOST_MASKS:
        raise ValueError(f"spec.masks has {len(found.masks)} entries: write at most {_MOST_MASKS}")
    return found


def is_url(text: str) -> bool:
    """Return whether the text is an HTTP URL without credentials."""
    return _URL.fullmatch(text) is not None


def check_config(config: ScorerConfig, place: str = "") -> None:
    """Check addresses and numbers; raises ValueError with field, value and remedy."""
    for field, host, path in (
        ("source", config.source.host, config.source.path),
        ("scoring", config.scoring.host, config.scoring.path),
    ):
        if host and not _HOST.fullmatch(host):
            raise ValueError(f"{place}{field}.host is {host!r:.80}: write http:// or https:// with host and port")
        if not _PATH.fullmatch(path):
            raise ValueError(f"{place}{field}.path is {path!r:.80}: write a path that begins with a slash")
    for field, seconds in (
        ("source.params.range", config.source.params.range),
        ("source.params.step", config.source.params.step),
        ("scoring.params.interval", config.scoring.params.interval),
    ):
        if not (math.isfinite(seconds) and 1 <= seconds <= _MOST_SECONDS):
            raise ValueError(f"{place}{field} is {seconds:g}: write seconds, 1 to {_MOST_SECONDS:g}")
    for field, auth in (("source", config.source.auth), ("scoring", config.scoring.auth)):
        secret = None if auth is None else auth.token_secret_ref
        if secret is not None and not (_NAME.fullmatch(secret.name) and _NAME.fullmatch(secret.key)):
            raise ValueError(f"{place}{field}.auth.tokenSecretRef: write name and key of an entry of a Secret")
