# SPDX-License-Identifier: Apache-2.0
"""Formulas and data that scorers share: predicted and observed latency, and scores that external scorers give."""

from collections.abc import Mapping
from math import inf, nan
from typing import ClassVar, Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from epp.framework.accelerators.arrays import relative_capacity
from epp.framework.accelerators.tag import AcceleratorTag
from epp.framework.arrays import Floats, Mask, read_only, within
from epp.framework.candidates import Candidates
from epp.framework.plugin import Datum, Parameters
from epp.framework.rates import ENDPOINT_RATES, EndpointRates
from epp.framework.records import Records
from epp.framework.request import DataKey, Request
from epp.framework.roles import Scorer
from epp.framework.snapshot import ACCELERATOR, Attribute, Snapshot

Source: TypeAlias = Literal["server", "learned", "rates"]
"""Where predictions come from: a prediction server, rates and what responses taught, or rates only."""


class LatencyPrediction(msgspec.Struct, frozen=True, eq=False):
    """Arrays by slot, in seconds; NaN for endpoints without a prediction.

    A headroom is the target minus the predicted time. Without a target, it is minus the predicted time, so that the
    largest headroom is always that of the fastest endpoint. Predicted times are p90 where there is a target, else p50.
    """

    source: Source
    ttft_seconds: Floats
    """Time to the first token, or to the end of the response where responses are not streamed: the median (p50)."""
    tpot_seconds: Floats
    """Time for each further token, likewise."""
    ttft_p90_seconds: Floats
    """Time that nine in ten responses keep, `ttft_seconds` or more; the same where it is not known."""
    tpot_p90_seconds: Floats
    """Likewise, for each further token."""
    sure: Mask
    """Whether a server predicted the times, or enough responses of the endpoint or its accelerator class taught them.
    Elsewhere, p50 and p90 are the times by rates."""
    samples: Floats
    """Responses of the endpoint under like load that taught the times; those of its class do not count."""
    ttft_headroom: Floats
    """0 where the time to the first token does not count."""
    tpot_headroom: Floats
    """0 where the time for further tokens does not count."""
    valid: Mask
    """Whether the endpoint is expected to meet the targets that the request has."""
    dispatched: Floats
    """Requests in flight."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__[1:]:
            read_only(getattr(self, name))

    def at(self, candidates: Candidates) -> "LatencyPrediction":
        """Return the same for the candidates, in their order."""
        slots = candidates.slots
        return LatencyPrediction(self.source, *(getattr(self, name)[slots] for name in self.__struct_fields__[1:]))

    def source_at(self, slot: int) -> Source:
        """Return where the times of a slot come from."""
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
"""Predicted latency of the request at each endpoint; missing where nothing is known."""


class ObservedLatency(msgspec.Struct, frozen=True, eq=False):
    """Measured times to the first token, in seconds, by slot; 0 for unknown ones."""

    values: NDArray[np.float64]
    """One line for each slot: the fields below."""
    floor: Floats
    """Without load."""
    low: Floats
    """At low load."""
    typical: Floats
    """At typical load."""
    low_in_flight: Floats
    """Requests in flight at low load."""
    typical_in_flight: Floats
    """Requests in flight at typical load."""
    has_recent: Floats
    """1 if there are enough recent times."""

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> "ObservedLatency":
        """Return the observations in these lines."""
        read_only(values)
        return cls(values, *values.T)

    def at(self, candidates: Candidates) -> "ObservedLatency":
        """Return the same for the candidates, in their order."""
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
"""Plausible relative capacities; beyond them a figure is wrong, and load divided by it may not be finite."""


def lower_is_better(values: Floats) -> Floats:
    """Map the lowest value to 1 and the highest to 0, linearly; all equal give 1.

    A candidate with an unknown value (NaN) gets 0.5 if any value is known, and 1 otherwise.
    """
    low, high = values[values.argmin()], values[values.argmax()]  # NaN where any is
    if low == high:
        return np.ones(len(values))
    if low < high:  # not so where a NaN is
        scores: Floats = (high - values) / (high - low)
        return scores
    known = ~np.isnan(values)
    if not known.any():
        return np.ones(len(values))
    return np.where(known, lower_is_better(values[known])[np.cumsum(known) - 1], 0.5)


def lowest_over(values: Floats) -> Floats:
    """Return the lowest value divided by each; 0 for infinite values.

    Values are 0 or more. If the lowest is 0, it gets 1 and any other 0.
    """
    lowest = values.item(values.argmin()) if len(values) else inf
    if lowest == inf:
        return np.zeros(len(values))
    return lowest / values if lowest > 0 else (values == 0).astype(np.float64)


class LoadParameters(Parameters, frozen=True):
    """The capacity to divide load by."""

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
    """A score of one name, as far as it bears on an endpoint."""

    value: float = nan
    """Of the most specific level but for devices; NaN for none."""
    per_pod: bool = False
    """Whether that is the level of pods, before which devices do not count."""
    devices: tuple[Mapping[str, float], ...] = ()
    """Values of devices by their id or kind, in lower case: those on the endpoint's node before those of any node."""
    expired: bool = False
    """Whether there was a value, and its validity has passed."""


class DynamicScores(msgspec.Struct, frozen=True, kw_only=True):
    """Scores that bear on an endpoint."""

    by_name: Mapping[str, DynamicScore] = msgspec.field(default_factory=dict)


NO_DYNAMIC_SCORES = DynamicScores()

DYNAMIC_SCORES: Attribute[DynamicScores] = Attribute("dynamic_scores", NO_DYNAMIC_SCORES, "dynamic-score-source")


class DynamicScoreColumn:
    """The values of one score for each slot, joined again only when scores or hardware change."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._of: tuple[object, object] | None = None
        self._values: Floats = np.empty(0)

    def of(self, snapshot: Snapshot) -> Floats:
        """Return the values, NaN for none: pod before device before node, app and cluster."""
        found = (snapshot.attributes.get(DYNAMIC_SCORES.name), snapshot.attributes.get(ACCELERATOR.name))
        if (
            self._of is None
            or self._of[0] is not found[0]
            or self._of[1] is not found[1]
            or (len(self._values) != snapshot.capacity)
        ):
            self._of = found
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
