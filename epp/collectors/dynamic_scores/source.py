# SPDX-License-Identifier: Apache-2.0
"""The plugin that asks outside scorers, and gives endpoints their scores."""

import asyncio
from collections.abc import Callable, Sequence

from epp.collectors.dynamic_scores.asking import HEALTH, Asking
from epp.collectors.dynamic_scores.fetching import Fetcher
from epp.collectors.dynamic_scores.parameters import DynamicScoreSourceParameters
from epp.collectors.dynamic_scores.scorer import Asked
from epp.framework.datalayer import Concerns, FollowingTagger, Report, every_endpoint
from epp.framework.durations import parse_duration
from epp.framework.dynamic_scores import DYNAMIC_SCORES, DynamicScore, DynamicScores
from epp.framework.endpoint import Endpoint
from epp.framework.plugin_metrics import PluginMetric, Sample

_HEALTH = PluginMetric("dynamic_scorer_health", "1 for the health of each dynamic scorer.", ("scorer", "state"))
_AGE = PluginMetric("dynamic_scorer_age_seconds", "Time since the last answer of each dynamic scorer.", ("scorer",))
_REQUESTS = PluginMetric(
    "dynamic_scorer_requests", "Requests for dynamic scores, by outcome.", ("scorer", "outcome"), is_counter=True
)
_RESULTS = PluginMetric(
    "dynamic_scorer_results", "Results in the last answer of each dynamic scorer, used or not.", ("scorer", "state")
)


class DynamicScoreSource(FollowingTagger[DynamicScoreSourceParameters]):
    """Asks scorers of the Dynamic Scoring Framework of Open Cluster Management, and reads pages with their scores.

    Every `interval`, the result of a query to Prometheus is posted to the scorer, whose results are joined to endpoints
    by their most specific dimension: pod, device, node, app, then cluster. `cluster-score` with `source: dynamic` reads
    them. All of that happens in the background: a scorer that is slow, silent or wrong leaves the last scores in effect
    for `validity`; then they count as missing. Answers are at most 4 MiB, with at most 20,000 results; redirects are
    not followed.
    """

    plugin_type = "dynamic-score-source"
    writes = (DYNAMIC_SCORES,)
    metrics = (_HEALTH, _AGE, _REQUESTS, _RESULTS)

    def setup(self) -> None:
        """Prepare the scorers; none is asked yet."""
        scorers = [each.asked() for each in self.parameters.scorers]
        pages = [each.asked() for each in self.parameters.pages]
        self._askings = tuple(map(self._asking, (*scorers, *pages)))

    @property
    def samples(self) -> Sequence[Sample]:
        """Health, age and counts of each scorer."""
        found: list[Sample] = []
        for each in self._askings:
            name = each.asked.name
            if each.asked.health_url:
                found += [Sample(_HEALTH, float(each.health == state), (name, state)) for state in HEALTH]
            if each.age_seconds is not None:
                found.append(Sample(_AGE, each.age_seconds, (name,)))
            found += [Sample(_REQUESTS, each.answers, (name, "ok")), Sample(_REQUESTS, each.failures, (name, "error"))]
            used = sum(len(scores.results) for scores in each.scores.values())
            found += [Sample(_RESULTS, used, (name, "used")), Sample(_RESULTS, each.left_out, (name, "left out"))]
        return found

    def tag(self, endpoint: Endpoint) -> Report:
        """Return the scores that bear on the endpoint."""
        cluster = endpoint.cluster or self.parameters.cluster
        found: dict[str, DynamicScore] = {}
        for asking in self._askings:
            for name, scores in asking.scores.items():
                score = scores.of(endpoint, cluster)
                known = found.get(name)
                if score is None or (known is not None and not known.expired):
                    continue
                found[name] = score if asking.valid else DynamicScore(expired=True)
        return Report(attributes={DYNAMIC_SCORES: DynamicScores(by_name=found)})

    async def follow(self, changed: Callable[[Concerns], None]) -> None:
        """Ask all scorers until cancelled."""
        timeout = parse_duration(self.parameters.timeout)
        async with (
            Fetcher(timeout_seconds=timeout, ca_cert_path=self.parameters.ca_cert_path) as fetcher,
            asyncio.TaskGroup() as tasks,
        ):
            for asking in self._askings:
                tasks.create_task(asking.run(fetcher, lambda: changed(every_endpoint)))

    def _asking(self, asked: Asked) -> Asking:
        validity = self.parameters.validity
        return Asking(
            asked,
            self.clock,
            owner=self.name,
            aggregate=self.parameters.aggregate,
            validity_seconds=parse_duration(validity) if validity else None,
        )
