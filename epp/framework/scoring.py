"""Formulas that scorers share: lowest load best, load in proportion to what the hardware can do, and weights."""

from collections.abc import Mapping
from typing import ClassVar, Literal, TypeAlias

import numpy as np
from typing_extensions import TypeVar

from epp.framework.accelerator_arrays import relative_capacity
from epp.framework.arrays import Floats
from epp.framework.candidates import Candidates
from epp.framework.clock import Clock
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

_LARGEST_WEIGHT = 1e6
_CAPACITY_RANGE = (1e-6, 1e6)
"""No pool is that mixed; beyond it a figure is wrong, and the load over it might not be finite."""


def lower_is_better(values: Floats) -> Floats:
    """Map the lowest value to 1 and the highest to 0, linearly; all equal give 1.

    A candidate with an unknown value (NaN) gets 0.5 beside others that are known, and 1 where none is known.
    """
    low, high = values.min(), values.max()
    if low == high:
        return np.ones(len(values))
    if low < high:  # not so where a NaN is
        scores: Floats = (high - values) / (high - low)
        return scores
    known = ~np.isnan(values)
    if not known.any():
        return np.ones(len(values))
    return np.where(known, lower_is_better(values[known])[np.cumsum(known) - 1], 0.5)


def require_weights(weights: Mapping[str, float]) -> None:
    """Refuse weights that are negative or absurd, and all of them 0; raises ValueError with their names."""
    for name, weight in weights.items():
        if not 0 <= weight <= _LARGEST_WEIGHT:
            raise ValueError(f"{name} is {weight}; it must be between 0 and {_LARGEST_WEIGHT:g}")
    if not sum(weights.values()):
        raise ValueError(f"{' and '.join(weights)} are all 0: every score would be; set one of them above 0")


class LoadParameters(Parameters, frozen=True):
    """What load is measured against."""

    normalize_by: NormalizeBy = ""
    """Divide the load by the endpoint's capacity first, so that one request in a small device's queue weighs more than
    one in a large device's: `relativeCapacity` is its fp16 TFLOPS over the pool's median, `learnedCapacity` the prompt
    tokens it computes in a second, learned from its responses, over the pool's median; where that is not known, 1.
    Empty: load as it is.
    """


L = TypeVar("L", bound=LoadParameters, default=LoadParameters)


class LoadScorer(Scorer[L]):
    """A scorer of load, which `normalizeBy` puts in proportion to capacity."""

    parameters_type: ClassVar[type[Parameters]] = LoadParameters

    def __init__(self, parameters: L | None = None, *, name: str = "", clock: Clock | None = None) -> None:
        super().__init__(parameters, name=name, clock=clock)
        self.reads = (*self.reads, *_CAPACITY_DATA[self.parameters.normalize_by])

    def in_proportion(self, load: Floats, request: Request, candidates: Candidates) -> Floats:
        """Return the load of each candidate over its capacity, as configured."""
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
    return np.where(known, np.clip(capacity, *_CAPACITY_RANGE), 1.0)
