# SPDX-License-Identifier: Apache-2.0
"""Predicted latency of a request at each endpoint, and its distance from the targets of the request."""

from typing import Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from epp.framework.arrays import Floats, Mask, read_only
from epp.framework.candidates import Candidates
from epp.framework.request import DataKey

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
        """Keep readers from writing to the arrays."""
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
