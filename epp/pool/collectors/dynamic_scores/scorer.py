# SPDX-License-Identifier: Apache-2.0
"""One outside scorer: its requests, their schedule, and the validity of its scores."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import msgspec
import structlog

from epp.framework.clock import Clock
from epp.framework.datalayer import PageError
from epp.kube.objects.base import convert
from epp.kube.objects.ocm import Auth, DynamicScorer, ScorerConfig, check_config
from epp.pool.collectors.dynamic_scores.results import (
    Aggregate,
    JoinedScores,
    Result,
    ResultError,
    dimensions_in,
    read_page,
    read_results,
)

if TYPE_CHECKING:
    from epp.pool.collectors.dynamic_scores.fetching import Fetcher

_MOST_QUERIES = 16
_MOST_DATA_BYTES = 16 * 1024 * 1024
HEALTH_SECONDS = 30.0
_VALID_INTERVALS = 3
_LONGEST_CHECK_SECONDS, _CHECKS_PER_VALIDITY = 1.0, 8
_log = structlog.get_logger()


class FetchError(Exception):
    """A request failed, or its response is invalid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerRequest:
    """Requests to a scorer, or to a metrics page with scores."""

    name: str
    """Name in log lines and metrics."""
    score_name: str
    config: ScorerConfig
    page_url: str = ""
    """Metrics page with the series `dynamic_score`, which replaces a scorer."""
    config_url: str = ""
    """URL of the configuration that the scorer itself provides; empty for none."""
    dimensions: str = ""
    """`scoreDimensionFormat` of the scorer."""
    cluster: str = ""
    """Cluster of results without a cluster."""
    source_token_file: str = ""
    scoring_token_file: str = ""

    @property
    def interval_seconds(self) -> float:
        return self.config.scoring.params.interval

    @property
    def health_url(self) -> str:
        """URL of the health check; empty for a page."""
        return "" if self.page_url or not self.config.scoring.host else _join(self.config.scoring.host, "/healthz")

    def synced(self, body: bytes) -> "ScorerRequest":
        """Return a copy with paths and parameters from the configuration that the scorer provides; raises ValueError.

        Configured hosts are kept, so that tokens are not sent to other hosts.
        """
        try:
            provided = convert(msgspec.json.decode(body), ScorerConfig)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"not valid JSON: {error}") from None
        check_config(provided)
        own = self.config
        source, scoring = provided.source, provided.scoring
        kind, host = source.type or own.source.type, own.source.host or source.host
        config = ScorerConfig(
            source=msgspec.structs.replace(source, type=kind, host=host, auth=own.source.auth),
            scoring=msgspec.structs.replace(scoring, host=own.scoring.host or scoring.host, auth=own.scoring.auth),
        )
        return replace(
            self,
            config=config,
            score_name=provided.scoring.params.name or self.score_name,
            source_token_file=self.source_token_file if own.source.host else "",
            scoring_token_file=self.scoring_token_file if own.scoring.host else "",
        )

    async def scores(self, client: "Fetcher", clock: Clock) -> tuple[Mapping[str, list[Result]], int]:
        """Return the results by score, and the number of invalid ones; raises FetchError, ResultError or PageError."""
        if self.page_url:
            page = await client.get(self.page_url, token_file=self.scoring_token_file)
            found = await asyncio.to_thread(read_page, page)
            return {name: self._here(each) for name, each in found.items()}, 0
        body = await self._data(client, clock)
        scoring = self.config.scoring
        answer = await client.post(_join(scoring.host, scoring.path), body, token_file=self.scoring_token_file)
        results, left_out = await asyncio.to_thread(read_results, answer, dimensions_in(self.dimensions))
        return {self.score_name: self._here(results)}, left_out

    async def _data(self, client: "Fetcher", clock: Clock) -> bytes:
        """Return the body to post: the series of all queries."""
        source = self.config.source
        queries = [query.strip() for query in source.params.query.split(";") if query.strip()]
        if source.type == "None" or not source.host or not queries:
            return b'{"data":[]}'
        if len(queries) > _MOST_QUERIES:
            raise FetchError(f"source.params.query has {len(queries)} queries, more than {_MOST_QUERIES}")
        now, series = clock.utc(), []
        for query in queries:
            parameters = {
                "query": query,
                "start": f"{now - source.params.range:.3f}",
                "end": f"{now:.3f}",
                "step": f"{source.params.step:g}",
            }
            url = _join(source.host, source.path)
            series.append(_series(await client.get(url, query=parameters, token_file=self.source_token_file), url))
            if sum(map(len, series)) > _MOST_DATA_BYTES:
                raise FetchError(f"the queries give more than {_MOST_DATA_BYTES} bytes: ask for fewer series")
        return b'{"data":[' + b",".join(filter(None, series)) + b"]}"

    def _here(self, results: list[Result]) -> list[Result]:
        if not self.cluster:
            return results
        return [each if each.cluster else each._replace(cluster=self.cluster) for each in results]


def request_of(scorer: DynamicScorer, secrets_path: str) -> ScorerRequest:
    """Return the requests of a DynamicScorer; raises ValueError if it needs a token and `secretsPath` is not set."""
    spec = scorer.spec

    def token_file(field: str, auth: Auth | None) -> str:
        if auth is None:
            return ""
        secret = auth.token_secret_ref
        if not secrets_path:
            raise ValueError(f"spec.{field}.auth needs Secret {secret.name}: mount it, and set secretsPath")
        return f"{secrets_path}/{secret.name}/{secret.key}"

    return ScorerRequest(
        name=scorer.id,
        score_name=scorer.score_name,
        config=ScorerConfig(source=spec.source, scoring=spec.scoring),
        config_url=spec.config_url if spec.config_sync_mode == "Full" else "",
        dimensions=spec.score_dimension_format,
        source_token_file=token_file("source", spec.source.auth),
        scoring_token_file=token_file("scoring", spec.scoring.auth),
    )


class _Data(msgspec.Struct):
    result: msgspec.Raw


class _Answered(msgspec.Struct):
    data: _Data
    status: str = ""


def _series(body: bytes, url: str) -> bytes:
    """Return the series in a response of Prometheus as the elements of a JSON list; raises FetchError."""
    try:
        found = msgspec.json.decode(body, type=_Answered)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FetchError(f"{url} did not return the result of a query: {error}") from None
    listed = bytes(found.data.result).strip()
    if found.status != "success" or not listed.startswith(b"["):
        raise FetchError(f"{url} answered status {found.status!r:.40} and no list of series")
    return listed[1:-1].strip()


def _join(host: str, path: str) -> str:
    return host.rstrip("/") + path


Health = Literal["Active", "Inactive", "Unknown"]
HEALTH: tuple[Health, ...] = ("Active", "Inactive", "Unknown")


class ScorerPoller:
    """Requests the scores of one scorer periodically; the last scores are kept while they are valid."""

    def __init__(
        self, request: ScorerRequest, clock: Clock, *, owner: str, aggregate: Aggregate, validity_seconds: float | None
    ) -> None:
        self.origin = request
        """The requests as configured."""
        self.request = request
        """The requests with the configuration that the scorer provides."""
        self.health: Health = "Unknown"
        self.failures = 0
        self.answers = 0
        self.left_out = 0
        """Number of results in the last response that were not scores."""
        self._clock = clock
        self._owner = owner
        self._aggregate = aggregate
        self._validity_seconds = validity_seconds
        self._answered_at: float | None = None
        self._results: Mapping[str, list[Result]] = {}
        self._failing = ""
        self.scores: Mapping[str, JoinedScores] = {}
        """Scores by name, expired ones included."""

    @property
    def age_seconds(self) -> float | None:
        """Time since the last response; None without one."""
        return None if self._answered_at is None else self._clock.now() - self._answered_at

    @property
    def valid(self) -> bool:
        age = self.age_seconds
        return age is not None and age < self._valid_seconds

    @property
    def _valid_seconds(self) -> float:
        return self._validity_seconds or _VALID_INTERVALS * self.request.interval_seconds

    async def run(self, client: "Fetcher", changed: Callable[[], None]) -> None:
        """Request scores until cancelled; call `changed` when they change or expire."""
        if self.request.config_url:
            await self._sync(client)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._check_health(client))
            tasks.create_task(self._poll(client, changed))
            tasks.create_task(self._watch_validity(changed))

    async def _poll(self, client: "Fetcher", changed: Callable[[], None]) -> None:
        while True:
            if await self._fetch_once(client):
                changed()
            await asyncio.sleep(self.request.interval_seconds)

    async def _watch_validity(self, changed: Callable[[], None]) -> None:
        """Call `changed` when scores expire before the next response."""
        was_valid = False
        while True:
            valid = self.valid
            if was_valid and not valid:
                _log.warning("dynamic scores expired", plugin=self._owner, scorer=self.request.name)
                changed()
            was_valid = valid
            await asyncio.sleep(min(_LONGEST_CHECK_SECONDS, self._valid_seconds / _CHECKS_PER_VALIDITY))

    async def _fetch_once(self, client: "Fetcher") -> bool:
        """Request scores once; return whether they changed."""
        was_valid = self.valid
        try:
            results, left_out = await self.request.scores(client, self._clock)
        except (FetchError, ResultError, PageError) as error:
            self.failures += 1
            self._log_state(str(error))
            return False
        self._log_state("")
        self.answers += 1
        self.left_out = left_out
        self._answered_at = self._clock.now()
        if results == self._results and was_valid:
            return False
        self._results = results
        self.scores = await asyncio.to_thread(
            lambda: {name: JoinedScores(each, self._aggregate) for name, each in results.items()}
        )
        return True

    async def _check_health(self, client: "Fetcher") -> None:
        while not self.request.page_url:
            if self.request.health_url:
                try:
                    await client.get(self.request.health_url)
                    self.health = "Active"
                except FetchError:
                    self.health = "Inactive"
            await asyncio.sleep(HEALTH_SECONDS)
            if self.request.config_url:
                await self._sync(client)

    async def _sync(self, client: "Fetcher") -> None:
        try:
            self.request = self.request.synced(await client.get(self.request.config_url))
        except (FetchError, ValueError) as error:
            self.failures += 1
            self._log_state(f"configuration of the scorer not used: {error}")

    def _log_state(self, problem: str) -> None:
        """Log the first failure, and the recovery."""
        if problem and not self._failing:
            _log.warning("dynamic scorer failed", plugin=self._owner, scorer=self.request.name, reason=problem)
        elif self._failing and not problem:
            _log.info("dynamic scorer answers again", plugin=self._owner, scorer=self.request.name)
        self._failing = problem
