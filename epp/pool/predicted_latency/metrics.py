# SPDX-License-Identifier: Apache-2.0
"""Metrics of predicted and measured latency by model, with the names of llm-d; targets of running requests."""

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from math import inf, isfinite, nan

import numpy as np

from epp.framework import Floats, Positions
from epp.framework.plugin_status import Distribution, Legacy, PluginMetric, Sample
from epp.pool.predicted_latency.messages import Kind

_MOST = 100_000
"""Most requests that count."""


class RunningTargets:
    """The strictest target of the running requests at each slot.

    A request counts until it ends, or for a limited time, since not every end is reported.
    """

    def __init__(self, ttl_seconds: float) -> None:
        self._ttl = ttl_seconds
        self._targets: dict[int, dict[int, float]] = {}
        """Targets by slot and number of the request."""
        self._expiry: deque[tuple[float, int, int]] = deque()
        self._number = 0
        self._strictest: Floats = np.zeros(0)

    def add(self, slot: int, target: float, now: float) -> int:
        """Add a request that is sent to the slot now; return its number, for `remove`."""
        self._number += 1
        if len(self._expiry) < _MOST:
            self._expiry.append((now + self._ttl, slot, self._number))
            self._targets.setdefault(slot, {})[self._number] = target
            self._reach(slot + 1)
            self._strictest[slot] = min(self._strictest[slot], target)
        return self._number

    def remove(self, slot: int, number: int) -> None:
        targets = self._targets.get(slot)
        if targets is None or targets.pop(number, None) is None:
            return
        self._strictest[slot] = min(targets.values(), default=inf)
        if not targets:
            del self._targets[slot]

    def forget(self, slots: Sequence[int]) -> None:
        for slot in slots:
            if self._targets.pop(slot, None) is not None:
                self._strictest[slot] = inf

    def strictest(self, slots: Positions) -> Floats | float:
        """Return the strictest target at each of these slots; infinite if there is none."""
        if not self._targets:
            return inf
        self._reach(int(slots.max(initial=-1)) + 1)
        return self._strictest[slots]

    def expire(self, now: float) -> None:
        while self._expiry and self._expiry[0][0] <= now:
            _, slot, number = self._expiry.popleft()
            self.remove(slot, number)

    def _reach(self, length: int) -> None:
        missing = length - len(self._strictest)
        if missing > 0:
            self._strictest = np.pad(self._strictest, (0, missing), constant_values=inf)


_MODELS = ("model_name", "target_model_name")
_MOST_MODELS = 64
_MOST_CHARACTERS = 128
_OTHER = ("other", "other")
_SECONDS: tuple[float, ...] = (
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60, 120, 180,
    240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600,
)  # fmt: skip
_TOKEN_SECONDS: tuple[float, ...] = (
    0.0005, 0.00205, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1, 1.5, 2, 3,
    4.5, 6, 12, 18, 24, 30, 36, 48, 60, 90, 120, 180, 270, 360,
)  # fmt: skip
_PREDICTION_SECONDS: tuple[float, ...] = (
    0.0001, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
)  # fmt: skip


def _histogram(name: str, text: str, bounds: tuple[float, ...]) -> PluginMetric:
    return PluginMetric(name, text, _MODELS, bounds=bounds, legacy=Legacy(f"inference_objective_{name}", _MODELS))


_PREDICTED: Mapping[Kind, PluginMetric] = {
    "ttft": _histogram("request_predicted_ttft_seconds", "Predicted time to the first token.", _SECONDS),
    "tpot": _histogram("request_predicted_tpot_seconds", "Predicted time for each further token.", _TOKEN_SECONDS),
}
_DURATION: Mapping[Kind, PluginMetric] = {
    kind: _histogram(
        f"request_{kind}_prediction_duration_seconds",
        "Time for the predictions of a request, at all its candidates.",
        _PREDICTION_SECONDS,
    )
    for kind in _PREDICTED
}
_VIOLATIONS = PluginMetric(
    "request_slo_violation",
    "Responses that missed their latency target, by target.",
    (*_MODELS, "type"),
    is_counter=True,
    legacy=Legacy("inference_objective_request_slo_violation_total", (*_MODELS, "type")),
)
_LATEST = PluginMetric(
    "inference_request_metric",
    "Values of the latest response: measured and predicted seconds, and 1 for a missed target.",
    (*_MODELS, "type"),
    legacy=Legacy("inference_objective_inference_request_metric", (*_MODELS, "type")),
)
_COVERAGE = PluginMetric(
    "request_p90_predictions",
    "Responses with a learned p90, by target, and by whether the measured time was within the p90.",
    (*_MODELS, "type", "result"),
    is_counter=True,
)
METRICS = (*_PREDICTED.values(), *_DURATION.values(), _VIOLATIONS, _LATEST, _COVERAGE)


class _OfModel:
    def __init__(self) -> None:
        self.distributions = {metric: Distribution(metric.bounds) for metric in METRICS if metric.bounds}
        self.violations: dict[Kind, int] = {"ttft": 0, "tpot": 0}
        self.latest: dict[str, float] = {}
        self.coverage: Counter[tuple[Kind, str]] = Counter()


class LatencyMetrics:
    """Records successful responses of up to 64 models; further models count together."""

    def __init__(self) -> None:
        self._models: dict[tuple[str, str], _OfModel] = {}

    @property
    def samples(self) -> Iterator[Sample]:
        """Values of the metrics; may be read in any thread."""
        for labels, model in [*self._models.items()]:
            yield from (Sample(metric, values, labels) for metric, values in model.distributions.items())
            yield from (Sample(_VIOLATIONS, count, (*labels, kind)) for kind, count in model.violations.items())
            yield from (Sample(_LATEST, value, (*labels, name)) for name, value in [*model.latest.items()])
            coverage = [*model.coverage.items()]
            yield from (Sample(_COVERAGE, count, (*labels, *of_kind)) for of_kind, count in coverage)

    def record(
        self,
        models: tuple[str, str],
        kind: Kind,
        seconds: float,
        *,
        predicted: tuple[float, float] | None,
        target: float,
        since_arrival: float,
        p90: float = nan,
    ) -> None:
        """Record a measured time; `predicted` is the predicted time and the duration of the prediction.

        The target, infinite for none, is compared with the time since the arrival of the request.
        """
        labels = models[0][:_MOST_CHARACTERS], models[1][:_MOST_CHARACTERS]
        if labels not in self._models and len(self._models) >= _MOST_MODELS:
            labels = _OTHER
        model = self._models.setdefault(labels, _OfModel())
        model.latest[kind] = seconds
        if predicted is not None:
            expected, took = predicted
            model.distributions[_PREDICTED[kind]].observe(expected)
            model.distributions[_DURATION[kind]].observe(took)
            model.latest |= {f"predicted_{kind}": expected, f"{kind}_prediction_duration": took}
        if isfinite(p90):
            model.coverage[kind, "within" if seconds <= p90 else "beyond"] += 1
        missed = since_arrival > target
        model.violations[kind] += missed
        model.latest[f"{kind}_slo_violation"] = float(missed)
