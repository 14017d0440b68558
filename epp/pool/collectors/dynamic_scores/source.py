# SPDX-License-Identifier: Apache-2.0
"""The plugin `dynamic-score-source` and its parameters: requests scores from outside scorers for endpoints."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

from msgspec import Meta, field

from epp.framework.cluster_objects import ObjectKind, ObjectsOfKind
from epp.framework.clusters import CLUSTER_LABELS, cluster_of
from epp.framework.datalayer import AffectedEndpoints, Report, Tagger, every_endpoint
from epp.framework.endpoint import Endpoint
from epp.framework.limits import AbsolutePath, Name
from epp.framework.plugin import Parameters
from epp.framework.plugin_status import InputState, PluginMetric, Sample
from epp.framework.quantities import duration_setting, parse_duration
from epp.framework.scoring import DYNAMIC_SCORES, DynamicScore, DynamicScores
from epp.kube.objects.decode import SCORER_KINDS
from epp.kube.objects.followed import Change, Effect, FollowsObjects
from epp.kube.objects.ocm import (
    DynamicScorer,
    DynamicScoringConfig,
    ScorerConfig,
    Scoring,
    ScoringParams,
    Source,
    SourceParams,
    check_config,
    is_url,
)
from epp.pool.collectors.dynamic_scores.results import Aggregate
from epp.pool.collectors.dynamic_scores.scorer import HEALTH, ScorerPoller, ScorerRequest, request_of


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
                range=duration_setting("source.range", self.source.range),
                step=duration_setting("source.step", self.source.step),
            )
            source = Source(type="Prometheus", host=self.source.host, path=self.source.path, params=params)
        scoring = Scoring(
            host=self.scoring.host,
            path=self.scoring.path,
            params=ScoringParams(name=self.name, interval=duration_setting("interval", self.interval)),
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
        params = ScoringParams(interval=duration_setting("interval", self.interval))
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
        duration_setting("timeout", self.timeout)
        duration_setting("validity", self.validity or "1s")
        lists: tuple[tuple[str, Sequence[ScorerParameters | PageParameters]], ...] = (
            ("scorers", self.scorers),
            ("pages", self.pages),
        )
        for name, entries in lists:
            for index, entry in enumerate(entries):
                try:
                    entry.request()
                except ValueError as error:
                    raise ValueError(f"{name}[{index}]: {error}") from None


_MOST_SCORERS = 256

_HEALTH = PluginMetric("dynamic_scorer_health", "1 for the health of each dynamic scorer.", ("scorer", "state"))
_AGE = PluginMetric("dynamic_scorer_age_seconds", "Time since the last answer of each dynamic scorer.", ("scorer",))
_REQUESTS = PluginMetric(
    "dynamic_scorer_requests", "Requests for dynamic scores, by outcome.", ("scorer", "outcome"), is_counter=True
)
_RESULTS = PluginMetric(
    "dynamic_scorer_results", "Results in the last answer of each dynamic scorer, used or not.", ("scorer", "state")
)


class DynamicScoreSource(Tagger[DynamicScoreSourceParameters], FollowsObjects[DynamicScoreSourceParameters]):
    """Requests scores from scorers of the Dynamic Scoring Framework of Open Cluster Management, and from pages.

    Every `interval`, the result of a query to Prometheus is posted to the scorer, whose results are joined to endpoints
    by their most specific dimension: pod, device, node, app, then cluster. `cluster-score` with `source: dynamic` reads
    them. All of this happens in the background. If a scorer fails, its last scores stay in effect for `validity`, then
    count as missing. Responses have at most 4 MiB and 20,000 results; redirects are not followed.
    """

    plugin_type = "dynamic-score-source"
    writes = (DYNAMIC_SCORES,)
    metrics = (_HEALTH, _AGE, _REQUESTS, _RESULTS)

    def setup(self) -> None:
        parameters = self.parameters
        requests = [each.request() for each in parameters.scorers]
        requests += [each.request() for each in parameters.pages]
        self._named = tuple(map(self._poller, requests))
        self._pollers = self._named
        self._masked: frozenset[tuple[str, str]] = frozenset()
        self._faults: tuple[str, ...] = ()
        """Reasons that scorers of objects are not used."""
        self._scorers_changed = asyncio.Event()
        self.start_following(parameters.paths, SCORER_KINDS)

    @property
    def warnings(self) -> Sequence[str]:
        """Warn that only objects of a cluster can define scorers."""
        parameters = self.parameters
        if parameters.scorers or parameters.pages or self._objects.paths:
            return ()
        return ["uses only scorers of DynamicScorer objects in a cluster: add scorers, pages or paths"]

    @property
    def kinds(self) -> Sequence[ObjectKind]:
        """DynamicScorer and DynamicScoringConfig."""
        return super().kinds if self.parameters.read_cluster else ()

    @property
    def inputs(self) -> InputState:
        return replace(self._objects.inputs, remarks=self._faults)

    @property
    def samples(self) -> Sequence[Sample]:
        found: list[Sample] = []
        for each in self._pollers:
            name = each.request.name
            if each.request.health_url:
                found += [Sample(_HEALTH, float(each.health == state), (name, state)) for state in HEALTH]
            if each.age_seconds is not None:
                found.append(Sample(_AGE, each.age_seconds, (name,)))
            found += [Sample(_REQUESTS, each.answers, (name, "ok")), Sample(_REQUESTS, each.failures, (name, "error"))]
            used = sum(scores.count for scores in each.scores.values())
            found += [Sample(_RESULTS, used, (name, "used")), Sample(_RESULTS, each.left_out, (name, "left out"))]
        return found

    def tag(self, endpoint: Endpoint) -> Report:
        cluster = cluster_of(endpoint, self.parameters.cluster_labels, self.parameters.cluster)
        found: dict[str, DynamicScore] = {}
        for poller in self._pollers:
            for name, scores in poller.scores.items():
                score = None if (cluster, name) in self._masked else scores.of(endpoint, cluster)
                known = found.get(name)
                if score is None or (known is not None and not known.expired):
                    continue
                found[name] = score if poller.valid else DynamicScore(expired=True)
        return Report(attributes={DYNAMIC_SCORES: DynamicScores(by_name=found)})

    async def follow(self, changed: Callable[[AffectedEndpoints], None]) -> None:
        from epp.pool.collectors.dynamic_scores.fetching import Fetcher  # noqa: PLC0415  `epp check` uses no network

        timeout = parse_duration(self.parameters.timeout)
        async with (
            Fetcher(timeout_seconds=timeout, ca_cert_path=self.parameters.ca_cert_path) as client,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(super().follow(changed))
            running: dict[ScorerPoller, asyncio.Task[None]] = {}
            while True:
                self._scorers_changed.clear()
                for gone in running.keys() - set(self._pollers):
                    running.pop(gone).cancel()
                for poller in self._pollers:
                    if poller not in running:
                        running[poller] = tasks.create_task(poller.run(client, lambda: changed(every_endpoint)))
                await self._scorers_changed.wait()

    def effect_of(self, change: Change, kinds: Sequence[ObjectsOfKind] = ()) -> Effect:  # noqa: ARG002  all of them
        return partial(self._assign, change)

    def _assign(self, change: Change) -> AffectedEndpoints:
        """Use the objects; unchanged scorers keep their scores."""
        objects = [held for file in change.files for held in file.held]
        scorers = {each.id: each for each in objects if isinstance(each, DynamicScorer)}
        configs = [each for each in objects if isinstance(each, DynamicScoringConfig)]
        self._masked = frozenset((mask.cluster_name, mask.score_name) for config in configs for mask in config.masks)
        known = {poller.origin: poller for poller in self._pollers}
        pollers, faults = [], []
        for scorer in list(scorers.values())[:_MOST_SCORERS]:
            try:
                request = request_of(scorer, self.parameters.secrets_path)
            except ValueError as error:
                faults.append(f"DynamicScorer {scorer.id} is not used: {error}")
                continue
            pollers.append(known.get(request) or self._poller(request))
        self._pollers, self._faults = (*self._named, *pollers), tuple(faults)
        self._scorers_changed.set()
        return every_endpoint

    def _poller(self, request: ScorerRequest) -> ScorerPoller:
        validity = self.parameters.validity
        return ScorerPoller(
            request,
            self.clock,
            owner=self.name,
            aggregate=self.parameters.aggregate,
            validity_seconds=parse_duration(validity) if validity else None,
        )
