# SPDX-License-Identifier: Apache-2.0
"""The plugin `dynamic-score-source`: requests scores from outside scorers, and assigns them to endpoints."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from epp.framework.cluster import ObjectKind, ObjectsOfKind
from epp.framework.clusters import cluster_of
from epp.framework.datalayer import AffectedEndpoints, FollowingTagger, Report, every_endpoint
from epp.framework.endpoint import Endpoint
from epp.framework.plugin_status import PluginMetric, Sample
from epp.framework.quantities import parse_duration
from epp.framework.scoring import DYNAMIC_SCORES, DynamicScore, DynamicScores
from epp.kube.objects.decode import SCORER_KINDS
from epp.kube.objects.dynamic_scoring import DynamicScorer, DynamicScoringConfig
from epp.kube.objects.followed import Change, Effect, FollowsObjects
from epp.pool.collectors.dynamic_scores.parameters import DynamicScoreSourceParameters
from epp.pool.collectors.dynamic_scores.scorer import HEALTH, Client, ScorerPoller, ScorerRequest, request_of

_MOST_SCORERS = 256

_HEALTH = PluginMetric("dynamic_scorer_health", "1 for the health of each dynamic scorer.", ("scorer", "state"))
_AGE = PluginMetric("dynamic_scorer_age_seconds", "Time since the last answer of each dynamic scorer.", ("scorer",))
_REQUESTS = PluginMetric(
    "dynamic_scorer_requests", "Requests for dynamic scores, by outcome.", ("scorer", "outcome"), is_counter=True
)
_RESULTS = PluginMetric(
    "dynamic_scorer_results", "Results in the last answer of each dynamic scorer, used or not.", ("scorer", "state")
)


class DynamicScoreSource(FollowingTagger[DynamicScoreSourceParameters], FollowsObjects[DynamicScoreSourceParameters]):
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
        scorers = [each.request() for each in parameters.scorers]
        pages = [each.request() for each in parameters.pages]
        self._named = tuple(map(self._poller, (*scorers, *pages)))
        self._pollers = self._named
        self._masked: frozenset[tuple[str, str]] = frozenset()
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
            tasks.create_task(self._follow_scorers(client, lambda: changed(every_endpoint)))
            tasks.create_task(self.follow_files(changed))

    def effect_of(self, change: Change, kinds: Sequence[ObjectsOfKind] = ()) -> Effect:  # noqa: ARG002  all of them
        """Return the use of these objects."""
        return partial(self._apply, change)

    async def _follow_scorers(self, client: Client, changed: Callable[[], None]) -> None:
        """Run one task for each scorer."""
        running: dict[ScorerPoller, asyncio.Task[None]] = {}
        ending: set[asyncio.Task[None]] = set()
        waiting: asyncio.Task[bool] | None = None
        try:
            while True:
                self._scorers_changed.clear()
                for gone in running.keys() - set(self._pollers):
                    ending.add(task := running.pop(gone))
                    task.add_done_callback(ending.discard)
                    task.cancel()
                for poller in self._pollers:
                    if poller not in running:
                        running[poller] = asyncio.create_task(poller.run(client, changed))
                waiting = asyncio.create_task(self._scorers_changed.wait())
                done, _ = await asyncio.wait({waiting, *running.values()}, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                for ended in done:
                    ended.result()  # except for `waiting`, tasks end only with an error, which the supervisor handles
        finally:
            tasks = [*running.values(), *ending, *([] if waiting is None else [waiting])]
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _apply(self, change: Change) -> AffectedEndpoints:
        """Apply objects; unchanged scorers keep their scores."""
        objects = [held.object for file in change.files for held in file.held]
        scorers = {each.id: each for each in objects if isinstance(each, DynamicScorer)}
        configs = [each for each in objects if isinstance(each, DynamicScoringConfig)]
        self._masked = frozenset((mask.cluster_name, mask.score_name) for config in configs for mask in config.masks)
        known = {poller.origin: poller for poller in self._pollers}
        problems, pollers = [problem for file in change.files for problem in map(str, file.problems)], []
        problems += map(str, change.unknown)
        for scorer in list(scorers.values())[:_MOST_SCORERS]:
            try:
                request = request_of(scorer, self.parameters.secrets_path)
            except ValueError as error:
                problems.append(f"DynamicScorer {scorer.id} is not used: {error}")
                continue
            pollers.append(known.get(request) or self._poller(request))
        self._pollers = (*self._named, *pollers)
        self._objects.apply(change)
        self._objects.tell(problems)
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
