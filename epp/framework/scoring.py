# SPDX-License-Identifier: Apache-2.0
"""Formulas that scorers share, and scores that external scorers give."""

from collections.abc import Mapping
from math import inf, nan
from typing import ClassVar, Literal, TypeAlias

import msgspec
import numpy as np
from typing_extensions import TypeVar

from epp.framework.accelerators.arrays import relative_capacity
from epp.framework.accelerators.tag import AcceleratorTag
from epp.framework.arrays import Floats, read_only, within
from epp.framework.candidates import Candidates
from epp.framework.plugin import Datum, Parameters
from epp.framework.rates import ENDPOINT_RATES, EndpointRates
from epp.framework.records import Records
from epp.framework.request import Request
from epp.framework.roles import Scorer
from epp.framework.snapshot import ACCELERATOR, Attribute, Snapshot

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
        """Add the data for `normalizeBy` to the inputs."""
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
"""Scores that outside scorers give an endpoint."""


class DynamicScoreColumn:
    """The values of one score for each slot, joined again only when scores or hardware change."""

    __slots__ = ("_name", "_of", "_values")

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
