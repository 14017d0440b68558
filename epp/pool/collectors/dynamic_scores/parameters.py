# SPDX-License-Identifier: Apache-2.0
"""Outside scorers as a configuration names them."""

from collections.abc import Callable
from typing import Annotated, Literal

from msgspec import Meta, field

from epp.framework.clusters import CLUSTER_LABELS
from epp.framework.limits import AbsolutePath, Name
from epp.framework.plugin import Parameters
from epp.framework.quantities import parse_duration
from epp.kube.objects.dynamic_scoring import (
    ScorerConfig,
    Scoring,
    ScoringParams,
    Source,
    SourceParams,
    check_config,
    is_url,
)
from epp.pool.collectors.dynamic_scores.joining import Aggregate
from epp.pool.collectors.dynamic_scores.scorer import Asked


class QueryParameters(Parameters, frozen=True, kw_only=True):
    """A query to Prometheus, whose result is sent to the scorer."""

    host: Name
    """URL of the server."""
    path: AbsolutePath = "/api/v1/query_range"
    """Path of range queries."""
    query: Name
    """PromQL; several queries are joined with `;`."""
    range: str = "1m"
    """Time up to now that is asked for."""
    step: str = "15s"
    """Time between two samples."""
    token_file: str = ""
    """File with a bearer token, read again for each request."""


class ServiceParameters(Parameters, frozen=True, kw_only=True):
    """The service that scores."""

    host: Name
    """URL of the service."""
    path: AbsolutePath = "/scoring"
    """Path that takes the data."""
    token_file: str = ""
    """File with a bearer token, read again for each request."""


class ScorerParameters(Parameters, frozen=True, kw_only=True):
    """A scorer: the source of its data, and its service."""

    name: Name
    """Name of the score."""
    source: QueryParameters | None = None
    """Query whose result is sent to it; left out for a scorer that has data of its own."""
    scoring: ServiceParameters
    """Service that scores."""
    interval: str = "30s"
    """Time between two requests."""
    cluster: str = ""
    """Cluster of results that name none; empty for any."""
    score_dimension_format: str = ""
    """Dimensions of the results that count, as in a DynamicScorer: `${node};${pod}`. Empty for all."""
    config_url: str = field(default="", name="configURL")
    """URL at which the scorer says which query, paths and interval it wants; with `configSyncMode: Full`."""
    config_sync_mode: Literal["Full", "None"] = "None"
    """`Full`: ask the scorer for its configuration every 30 seconds, and use that. Hosts and tokens stay."""

    def asked(self) -> Asked:
        """Return what is asked; raises ValueError."""
        source = Source(type="None")
        if self.source is not None:
            params = SourceParams(
                query=self.source.query,
                range=_seconds("source.range", self.source.range),
                step=_seconds("source.step", self.source.step),
            )
            source = Source(type="Prometheus", host=self.source.host, path=self.source.path, params=params)
        scoring = Scoring(
            host=self.scoring.host,
            path=self.scoring.path,
            params=ScoringParams(name=self.name, interval=_seconds("interval", self.interval)),
        )
        config = ScorerConfig(source=source, scoring=scoring)
        check_config(config)
        if self.config_url and not is_url(self.config_url):
            raise ValueError(
                f"configURL is {self.config_url!r:.80}: write http:// or https:// with host, port and path"
            )
        if (self.config_sync_mode == "Full") != bool(self.config_url):
            raise ValueError("configURL and configSyncMode: Full belong together: write both or neither")
        return Asked(
            name=self.name,
            score_name=self.name,
            config=config,
            config_url=self.config_url,
            dimensions=self.score_dimension_format,
            cluster=self.cluster,
            source_token_file="" if self.source is None else self.source.token_file,
            scoring_token_file=self.scoring.token_file,
        )


class PageParameters(Parameters, frozen=True, kw_only=True):
    """A metrics page with the series `dynamic_score`."""

    url: Name
    """URL of the page."""
    interval: str = "30s"
    """Time between two requests."""
    cluster: str = ""
    """Cluster of series that name none; empty for any."""
    token_file: str = ""
    """File with a bearer token, read again for each request."""

    def asked(self) -> Asked:
        """Return what is asked; raises ValueError."""
        params = ScoringParams(interval=_seconds("interval", self.interval))
        config = ScorerConfig(scoring=Scoring(params=params))
        check_config(config)
        if not is_url(self.url):
            raise ValueError(f"url is {self.url!r:.80}: write http:// or https:// with host, port and path")
        return Asked(
            name=self.url,
            score_name="",
            config=config,
            page_url=self.url,
            cluster=self.cluster,
            scoring_token_file=self.token_file,
        )


class DynamicScoreSourceParameters(Parameters, frozen=True):
    """Scorers, and how their answers count."""

    scorers: Annotated[tuple[ScorerParameters, ...], Meta(max_length=64)] = ()
    """Scorers to ask."""
    pages: Annotated[tuple[PageParameters, ...], Meta(max_length=64)] = ()
    """Metrics pages with scores that others asked for."""
    paths: tuple[str, ...] = ()
    """Files, or directories of files (.yaml, .yml, .json), with objects DynamicScorer and DynamicScoringConfig."""
    read_cluster: bool = True
    """Read these objects from the Kubernetes cluster of the pool as well, where there is one. Of two objects with one
    name, the one in a file counts."""
    secrets_path: str = ""
    """Directory with the Secrets that objects name: a directory for each, with a file for each key, as Kubernetes
    mounts them. Scorers that need a token are not asked without it."""
    cluster: str = ""
    """Name of the local cluster: that of endpoints without a cluster."""
    cluster_labels: Annotated[tuple[str, ...], Meta(max_length=16)] = CLUSTER_LABELS
    """Labels of an endpoint that name its cluster, where the endpoint itself has none; the first one that is there."""
    aggregate: Aggregate = "mean"
    """Value of several results for the same pod, device, node, app or cluster: their mean, the highest, the lowest, or
    the last."""
    timeout: str = "5s"
    """Time limit for a request, from connecting to the last byte of the answer."""
    validity: str = ""
    """Time for which a score holds; by default three times the interval of its scorer."""
    ca_cert_path: str = ""
    """File with the certificate authorities of the servers; by default those of the system."""

    def __post_init__(self) -> None:
        """Check durations and scorers; raises ValueError."""
        for name, text in (("timeout", self.timeout), ("validity", self.validity or "1s")):
            _seconds(name, text)
        asked: list[tuple[str, Callable[[], Asked]]] = [
            *((f"scorers[{index}]", scorer.asked) for index, scorer in enumerate(self.scorers)),
            *((f"pages[{index}]", page.asked) for index, page in enumerate(self.pages)),
        ]
        for place, ask in asked:
            try:
                ask()
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from None


def _seconds(name: str, text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if seconds <= 0:
        raise ValueError(f"{name} is {text!r}: write a duration above 0")
    return seconds
