# SPDX-License-Identifier: Apache-2.0
"""Parameters of outside scorers."""

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
from epp.pool.collectors.dynamic_scores.results import Aggregate
from epp.pool.collectors.dynamic_scores.scorer import ScorerRequest


class QueryParameters(Parameters, frozen=True, kw_only=True):
    """A query to Prometheus, whose result is sent to the scorer."""

    host: Name
    """URL of the server."""
    path: AbsolutePath = "/api/v1/query_range"
    """Path of range queries."""
    query: Name
    """PromQL; several queries are joined with `;`."""
    range: str = "1m"
    """Time range of the query, up to now."""
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
    """Query whose result is sent to the scorer; omit it for a scorer with its own data."""
    scoring: ServiceParameters
    """Service that scores."""
    interval: str = "30s"
    """Time between two requests."""
    cluster: str = ""
    """Cluster of results without a cluster; empty for any."""
    score_dimension_format: str = ""
    """Dimensions of the results that count, as in a DynamicScorer: `${node};${pod}`. Empty for all."""
    config_url: str = field(default="", name="configURL")
    """URL at which the scorer provides its query, paths and interval; with `configSyncMode: Full`."""
    config_sync_mode: Literal["Full", "None"] = "None"
    """`Full`: fetch the configuration of the scorer every 30 seconds and use it, but keep hosts and tokens."""

    def request(self) -> ScorerRequest:
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
        return ScorerRequest(
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
    """Cluster of series without a cluster; empty for any."""
    token_file: str = ""
    """File with a bearer token, read again for each request."""

    def request(self) -> ScorerRequest:
        params = ScoringParams(interval=_seconds("interval", self.interval))
        config = ScorerConfig(scoring=Scoring(params=params))
        check_config(config)
        if not is_url(self.url):
            raise ValueError(f"url is {self.url!r:.80}: write http:// or https:// with host, port and path")
        return ScorerRequest(
            name=self.url,
            score_name="",
            config=config,
            page_url=self.url,
            cluster=self.cluster,
            scoring_token_file=self.token_file,
        )


class DynamicScoreSourceParameters(Parameters, frozen=True):
    """Scorers, and the use of their scores."""

    scorers: Annotated[tuple[ScorerParameters, ...], Meta(max_length=64)] = ()
    """Scorers to request scores from."""
    pages: Annotated[tuple[PageParameters, ...], Meta(max_length=64)] = ()
    """Metrics pages with scores."""
    paths: tuple[str, ...] = ()
    """Files, or directories of files (.yaml, .yml, .json), with objects DynamicScorer and DynamicScoringConfig."""
    read_cluster: bool = True
    """Also read these objects from the Kubernetes cluster of the pool, if there is one. If two objects have the same
    name, the one in a file counts."""
    secrets_path: str = ""
    """Directory with the Secrets that objects name: a directory for each, with a file for each key, as Kubernetes
    mounts them. Scorers whose token is missing are not used."""
    cluster: str = ""
    """Name of the local cluster, for endpoints without a cluster."""
    cluster_labels: Annotated[tuple[str, ...], Meta(max_length=16)] = CLUSTER_LABELS
    """Labels of an endpoint that name its cluster, in order of precedence, if the endpoint itself has no cluster."""
    aggregate: Aggregate = "mean"
    """Value of several results for the same pod, device, node, app or cluster: their mean, the highest, the lowest, or
    the last."""
    timeout: str = "5s"
    """Time limit for a request, from connecting to the last byte of the response."""
    validity: str = ""
    """Time for which a score is valid; by default three times the interval of its scorer."""
    ca_cert_path: str = ""
    """File with the certificate authorities of the servers; by default those of the system."""

    def __post_init__(self) -> None:
        for name, text in (("timeout", self.timeout), ("validity", self.validity or "1s")):
            _seconds(name, text)
        requests: list[tuple[str, Callable[[], ScorerRequest]]] = [
            *((f"scorers[{index}]", scorer.request) for index, scorer in enumerate(self.scorers)),
            *((f"pages[{index}]", page.request) for index, page in enumerate(self.pages)),
        ]
        for place, request in requests:
            try:
                request()
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
