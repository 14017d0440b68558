# SPDX-License-Identifier: Apache-2.0
"""Formulas and data that scorers share: predicted and observed latency, and scores from external scorers."""

from collections.abc import Mapping
from math import inf, nan
from operator import is_not
from typing import ClassVar, Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from epp.framework.accelerators.arrays import relative_capacity
from epp.framework.accelerators.tag import AcceleratorTag
from epp.framework.arrays import Floats, Mask, read_only, within
from epp.framework.candidates import Candidates
from epp.framework.expected_times import ENDPOINT_RATES, EndpointRates
from epp.framework.plugin import Datum, Parameters
from epp.framework.records import Records
from epp.framework.request import DataKey, Request
from epp.framework.roles import Scorer
from epp.framework.snapshot import ACCELERATOR, Attribute, Snapshot

Source: TypeAlias = Literal["server", "learned", "rates"]
"""Source of predictions: a prediction server, rates corrected by responses, or rates only."""


class LatencyPrediction(msgspec.Struct, frozen=True, eq=False):
    """Arrays by slot, in seconds; NaN for endpoints without a prediction.

    A headroom is the target, or 0 without a target, minus the predicted time, so that the fastest endpoint always has
    the largest headroom. The predicted time is p90 with a target, and p50 without.
    """

    source: Source
    ttft_seconds: Floats
    """Median (p50) time to the first token, or to the end of the response if responses are not streamed."""
    tpot_seconds: Floats
    """Median (p50) time for each further token."""
    ttft_p90_seconds: Floats
    """p90 of the time to the first token; `ttft_seconds` if unknown."""
    tpot_p90_seconds: Floats
    """p90 of the time for each further token; `tpot_seconds` if unknown."""
    sure: Mask
    """Whether a server predicted the times, or they were learned from enough responses of the endpoint or its
    accelerator class. Otherwise p50 and p90 are the times by rates."""
    samples: Floats
    """Responses of the endpoint under similar load from which the times were learned, without those of its class."""
    ttft_headroom: Floats
    """Headroom of the time to the first token; 0 if that does not count."""
    tpot_headroom: Floats
    """Headroom of the time for further tokens; 0 if that does not count."""
    valid: Mask
    """Whether the endpoint is expected to meet the targets of the request."""
    dispatched: Floats
    """Requests in flight."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__[1:]:
            read_only(getattr(self, name))

    def at(self, candidates: Candidates) -> "LatencyPrediction":
        """Return the predictions of the candidates, in their order."""
        slots = candidates.slots
        return LatencyPrediction(self.source, *(getattr(self, name)[slots] for name in self.__struct_fields__[1:]))

    def source_at(self, slot: int) -> Source:
        """Return the source of the times of a slot."""
        return "rates" if self.source == "learned" and not self.sure.item(slot) else self.source

    @property
    def predicted(self) -> Mask:
        """Mark endpoints with a prediction."""
        return ~np.isnan(self.ttft_seconds)

    @property
    def positive(self) -> Mask:
        """Mark endpoints where neither headroom is negative."""
        positive: Mask = (self.ttft_headroom >= 0) & (self.tpot_headroom >= 0)
        return positive


LATENCY_PREDICTION: DataKey[LatencyPrediction] = DataKey("latency-prediction", "predicted-latency-producer")
"""Predicted latency of the request at each endpoint; missing without any prediction."""


class ObservedLatency(msgspec.Struct, frozen=True, eq=False):
    """Measured times to the first token, in seconds, by slot; 0 if unknown."""

    values: NDArray[np.float64]
    """One row for each slot, with the fields below as columns."""
    floor: Floats
    """Time without load."""
    low: Floats
    """Time at low load."""
    typical: Floats
    """Time at typical load."""
    low_in_flight: Floats
    """Requests in flight at low load."""
    typical_in_flight: Floats
    """Requests in flight at typical load."""
    has_recent: Floats
    """1 if there are enough recent times."""

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> "ObservedLatency":
        """Return the observations in these rows."""
        read_only(values)
        return cls(values, *values.T)

    def at(self, candidates: Candidates) -> "ObservedLatency":
        """Return the observations of the candidates, in their order."""
        return ObservedLatency.of(self.values[candidates.slots])


OBSERVED_LATENCY: DataKey[ObservedLatency] = DataKey("observed-latency", "latency-observer-producer-hub")
"""Measured times to the first token at each endpoint."""


NormalizeBy: TypeAlias = Literal["", "relativeCapacity", "learnedCapacity"]

_CAPACITY_DATA: Mapping[NormalizeBy, tuple[Datum, ...]] = {
    "": (),
    "relativeCapacity": (ACCELERATOR,),
    "learnedCapacity": (ENDPOINT_RATES,),
}

_CAPACITY_RANGE = (1e-6, 1e6)
"""Range of plausible relative capacities, which also keeps the quotient of load and capacity finite."""


def lower_is_better(values: Floats) -> Floats:
    """Map the lowest value to 1 and the highest to 0, linearly; equal values give 1.

    A candidate with an unknown value (NaN) gets 0.5 if any value is known, and 1 otherwise.
    """
    low, high = values[values.argmin()], values[values.argmax()]  # NaN if any value is NaN
    if low == high:
        return np.ones(len(values))
    if low < high:  # false for NaN
        scores: Floats = (high - values) / (high - low)
        return scores
    known = ~np.isnan(values)
    if not known.any():
        return np.ones(len(values))
    return np.where(known, lower_is_better(values[known])[np.cumsum(known) - 1], 0.5)


def lowest_over(values: Floats) -> Floats:
    """Return the lowest value divided by each; 0 for infinite values.

    Values are 0 or more. If the lowest value is 0, it gets 1, and the others get 0.
    """
    lowest = values.item(values.argmin()) if len(values) else inf
    if lowest == inf:
        return np.zeros(len(values))
    return lowest / values if lowest > 0 else (values == 0).astype(np.float64)


class LoadParameters(Parameters, frozen=True):
    """Capacity by which load is divided."""

    normalize_by: NormalizeBy = ""
    """Divide the load by the endpoint's capacity, so that one request weighs more on a small device than on a large
    one. `relativeCapacity`: its fp16 TFLOPS over the pool's median. `learnedCapacity`: the prompt tokens it computes
    per second, learned from responses, over the pool's median. 1 if unknown. Empty: do not divide."""


L = TypeVar("L", bound=LoadParameters, default=LoadParameters)


class LoadScorer(Scorer[L]):
    """Base of scorers of load, in proportion to capacity if `normalizeBy` is set."""

    parameters_type: ClassVar[type[Parameters]] = LoadParameters

    def setup(self) -> None:
        self.reads = (*self.reads, *_CAPACITY_DATA[self.parameters.normalize_by])

    def in_proportion(self, load: Floats, request: Request, candidates: Candidates) -> Floats:
        """Return the load of each candidate, divided by its capacity if configured."""
        match self.parameters.normalize_by:
            case "relativeCapacity":
                return load / _usable(relative_capacity(candidates))
            case "learnedCapacity":
                return load / _relative_rates(request.get(ENDPOINT_RATES), candidates)
            case _:
                return load


def _relative_rates(rates: EndpointRates | None, candidates: Candidates) -> Floats:
    if rates is None:
        return np.ones(len(candidates))
    per_second = rates.prefill_tokens_per_second
    return _usable(per_second[candidates.slots] / np.median(per_second[candidates.snapshot.slots]))


def _usable(capacity: Floats) -> Floats:
    known = np.isfinite(capacity) & (capacity > 0)
    return np.where(known, within(capacity, *_CAPACITY_RANGE), 1.0)


class DynamicScore(msgspec.Struct, frozen=True, kw_only=True):
    """Values of one score that apply to an endpoint."""

    value: float = nan
    """Value of the most specific level except devices; NaN if there is none."""
    per_pod: bool = False
    """Whether `value` is that of the pod, which takes precedence over devices."""
    devices: tuple[Mapping[str, float], ...] = ()
    """Values by id or kind of device, in lower case: first those of the endpoint's node, then those of any node."""
    expired: bool = False
    """Whether a value has expired."""


class DynamicScores(msgspec.Struct, frozen=True, kw_only=True):
    """Scores that apply to an endpoint."""

    by_name: Mapping[str, DynamicScore] = msgspec.field(default_factory=dict)


NO_DYNAMIC_SCORES = DynamicScores()

DYNAMIC_SCORES: Attribute[DynamicScores] = Attribute("dynamic_scores", NO_DYNAMIC_SCORES, "dynamic-score-source")


class DynamicScoreColumn:
    """Cached values of one score for each slot, which are computed again when scores or hardware change."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._sources: tuple[object, object] = None, None
        self._values: Floats = np.empty(0)

    def of(self, snapshot: Snapshot) -> Floats:
        """Return the values, or NaN: of the pod, else of devices, else of node, app or cluster."""
        sources = snapshot.attributes.get(DYNAMIC_SCORES.name), snapshot.attributes.get(ACCELERATOR.name)
        if len(self._values) != snapshot.capacity or any(map(is_not, sources, self._sources)):
            self._sources = sources
            self._values = self._joined(snapshot.records(DYNAMIC_SCORES), snapshot.records(ACCELERATOR))
        return self._values

    def _joined(self, scores: Records[DynamicScores], tags: Records[AcceleratorTag]) -> Floats:
        pairs = zip(scores.values, tags.values, strict=True)
        return read_only(np.array([self._value(each.by_name.get(self._name), tag) for each, tag in pairs]))

    @staticmethod
    def _value(score: DynamicScore | None, tag: AcceleratorTag) -> float:
        if score is None:
            return nan
        if score.per_pod or not score.devices:
            return score.value
        for devices in score.devices:
            names = [{device.id.lower(), device.id.rpartition("/")[2].lower()} for device in tag.devices]
            found = [devices[name] for either in names for name in sorted(either) if name in devices]
            if not found and (kind := tag.partition.profile.lower() or "all") in devices and tag.model:
                found = [devices[kind]]
            if found:
                return sum(found) / len(found)
        return score.value
