# SPDX-License-Identifier: Apache-2.0
"""Formulas shared by scorers: lowest value best, ratio to the lowest, load in proportion to capacity, and weights."""

from collections.abc import Mapping
from math import inf
from typing import ClassVar, Literal, TypeAlias

import numpy as np
from typing_extensions import TypeVar

from epp.framework.accelerators.arrays import relative_capacity
from epp.framework.arrays import Floats, within
from epp.framework.candidates import Candidates
from epp.framework.plugin import Datum, Parameters
from epp.framework.rates import ENDPOINT_RATES, EndpointRates
from epp.framework.request import Request
from epp.framework.roles import Scorer
from epp.framework.snapshot import ACCELERATOR

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
