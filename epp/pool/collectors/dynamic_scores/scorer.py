# SPDX-License-Identifier: Apache-2.0
"""One outside scorer: fetch its source data, post it, and read the scores."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

from epp.framework.clock import Clock
from epp.kube.objects.base import convert
from epp.kube.objects.dynamic_scoring import Auth, DynamicScorer, ScorerConfig, Scoring, Source, check_config
from epp.pool.collectors.dynamic_scores.client import Client, FetchError
from epp.pool.collectors.dynamic_scores.results import Result, dimensions_in, read_page, read_results

_MOST_QUERIES = 16
_MOST_DATA_BYTES = 16 * 1024 * 1024


class Answer(NamedTuple):
    """Results by name of their score."""

    results: Mapping[str, list[Result]]
    left_out: int = 0
    """Results that are no scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked, and where."""

    name: str
    """Name in log lines and metrics."""
    score_name: str
    config: ScorerConfig
    page_url: str = ""
    """Metrics page with the series `dynamic_score`, asked in place of a scorer."""
    config_url: str = ""
    """Where the scorer says how it is to be asked; empty for nowhere."""
    dimensions: str = ""
    """Its `scoreDimensionFormat`."""
    cluster: str = ""
    """Cluster of results that name none."""
    source_token_file: str = ""
    scoring_token_file: str = ""

    @property
    def interval_seconds(self) -> float:
        """Time between two questions."""
        return self.config.scoring.params.interval

    @property
    def health_url(self) -> str:
        """Where it says whether it is well; empty for a page."""
        return "" if self.page_url or not self.config.scoring.host else _join(self.config.scoring.host, "/healthz")

    def synced(self, body: bytes) -> "Asked":
        """Return it with what the scorer itself says of paths and parameters; raises ValueError.

        Hosts stay as they are: a token is sent to no other.
        """
        try:
            said = convert(msgspec.json.decode(body), ScorerConfig)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"not JSON: {error}") from None
        check_config(said)
        own = self.config
        config = ScorerConfig(
            source=Source(
                type=said.source.type or own.source.type,
                host=own.source.host or said.source.host,
                path=said.source.path,
                params=said.source.params,
                auth=own.source.auth,
            ),
            scoring=Scoring(
                host=own.scoring.host or said.scoring.host,
                path=said.scoring.path,
                params=said.scoring.params,
                auth=own.scoring.auth,
            ),
        )
        return replace(
            self,
            config=config,
            score_name=said.scoring.params.name or self.score_name,
            source_token_file=self.source_token_file if own.source.host else "",
            scoring_token_file=self.scoring_token_file if own.scoring.host else "",
        )

    async def ask(self, client: Client, clock: Clock) -> Answer:
        """Return what the scorer answers now; raises FetchError, ResultError or PageError."""
        if self.page_url:
            page = await client.get(self.page_url, token_file=self.scoring_token_file)
            found = await asyncio.to_thread(read_page, page)
            return Answer({name: self._here(each) for name, each in found.items()})
        body = await self._data(client, clock)
        scoring = self.config.scoring
        answer = await client.post(_join(scoring.host, scoring.path), body, token_file=self.scoring_token_file)
        results, left_out = await asyncio.to_thread(read_results, answer, dimensions_in(self.dimensions))
        return Answer({self.score_name: self._here(results)}, left_out)

    async def _data(self, client: Client, clock: Clock) -> bytes:
        """Return the body to post: the series of all queries."""
        source = self.config.source
        queries = [query.strip() for query in source.params.query.split(";") if query.strip()]
        if source.type == "None" or not source.host or not queries:
            return b'{"data":[]}'
        if len(queries) > _MOST_QUERIES:
            raise FetchError(f"source.params.query has {len(queries)} queries, more than {_MOST_QUERIES}")
        now, series = clock.utc(), []
        for query in queries:
            asked = {
                "query": query,
                "start": f"{now - source.params.range:.3f}",
                "end": f"{now:.3f}",
                "step": f"{source.params.step:g}",
            }
            url = _join(source.host, source.path)
            series.append(_series(await client.get(url, query=asked, token_file=self.source_token_file), url))
            if sum(map(len, series)) > _MOST_DATA_BYTES:
                raise FetchError(f"the queries give more than {_MOST_DATA_BYTES} bytes: ask for fewer series")
        return b'{"data":[' + b",".join(filter(None, series)) + b"]}"

    def _here(self, results: list[Result]) -> list[Result]:
        if not self.cluster:
            return results
        return [each if each.cluster else each._replace(cluster=self.cluster) for each in results]


def asked_by(scorer: DynamicScorer, secrets_path: str) -> Asked:
    """Return what an object asks for; raises ValueError where a token is needed and there is no directory for it."""
    spec = scorer.spec

    def token_file(field: str, auth: Auth | None) -> str:
        if auth is None:
            return ""
        secret = auth.token_secret_ref
        if not secrets_path:
            raise ValueError(f"spec.{field}.auth needs Secret {secret.name}: mount it, and set secretsPath")
        return f"{secrets_path}/{secret.name}/{secret.key}"

    return Asked(
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
    """Return the series in an answer of Prometheus as the inside of a JSON list; raises FetchError."""
    try:
        found = msgspec.json.decode(body, type=_Answered)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FetchError(f"{url} answered what is no result of a query: {error}") from None
    listed = bytes(found.data.result).strip()
    if found.status != "success" or not listed.startswith(b"["):
        raise FetchError(f"{url} answered status {found.status!r:.40} and no list of series")
    return listed[1:-1].strip()


def _join(host: str, path: str) -> str:
    return host.rstrip("/") + path
