# SPDX-License-Identifier: Apache-2.0
"""Prefer endpoints by a strategy of OME: cost, performance, or a balance of both."""

from collections.abc import Mapping
from math import isfinite
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from epp.framework import (
    ACCELERATOR,
    ENDPOINT_RATES,
    IN_FLIGHT,
    IN_FLIGHT_TOKENS,
    PREFIX_MATCH,
    PROMPT_TOKENS,
    Candidates,
    Category,
    Floats,
    Parameters,
    Request,
    Scorer,
)
from epp.framework.accelerators.arrays import USAGE_INPUTS, GpuUsageParameters, estimated_share, tag_numbers
from epp.framework.accelerators.tag import AcceleratorTag
from epp.framework.limits import Weight, require_weights
from epp.framework.plugin import Datum
from epp.framework.rates import TARGET_IN_REACH, batch_sizes, uncached_tokens
from epp.framework.scoring import lowest_over
from epp_scorers.cost import CostPerRequestParameters, CostPerRequestScorer

Strategy: TypeAlias = Literal["cost", "performance", "balanced"]
_LEAST_SECONDS = 1e-3


class _Weights(NamedTuple):
    dollars: float
    first_token: float
    pace: float
    idle: float


WEIGHTS: Mapping[str, _Weights] = MappingProxyType(
    {
        "cost": _Weights(0.7, 0.1, 0.1, 0.1),
        "performance": _Weights(0.0, 0.45, 0.45, 0.1),
        "balanced": _Weights(0.35, 0.25, 0.25, 0.15),
    }
)
STRATEGY_INPUTS: tuple[Datum, ...] = (
    ENDPOINT_RATES,
    PREFIX_MATCH,
    PROMPT_TOKENS,
    TARGET_IN_REACH,
    IN_FLIGHT,
    IN_FLIGHT_TOKENS,
    *USAGE_INPUTS,
)
"""Data that a strategy is computed from, besides the accelerators."""


class StrategyParameters(Parameters, frozen=True):
    """The strategy, or weights of one's own."""

    strategy: Strategy = "balanced"
    """Weights of dollars, first token, pace and idle share: `cost` 0.7, 0.1, 0.1, 0.1; `performance` 0, 0.45, 0.45,
    0.1; `balanced` 0.35, 0.25, 0.25, 0.15."""
    dollars_weight: Weight | None = None
    """Weight of the dollars for the request, in place of the strategy's."""
    first_token_weight: Weight | None = None
    """Weight of the expected time to the first token, in place of the strategy's."""
    pace_weight: Weight | None = None
    """Weight of the expected time between two tokens, in place of the strategy's."""
    idle_weight: Weight | None = None
    """Weight of the share of the GPUs that is not in use, in place of the strategy's."""

    def __post_init__(self) -> None:
        """Refuse weights that are all 0."""
        weights = self.weights()
        require_weights({f"{name.replace('first_token', 'firstToken')}Weight": one for name, one in weights.items()})

    def weights(self) -> dict[str, float]:
        """Return the weights by the names of the terms."""
        own = {name: getattr(self, f"{name}_weight") for name in _Weights._fields}
        return {name: one if own[name] is None else own[name] for name, one in WEIGHTS[self.strategy]._asdict().items()}


class StrategyScorer(Scorer[StrategyParameters]):
    """Weighted mean of four terms, each the lowest value among the candidates over that of the endpoint.

    - `dollars` for the request: price of the endpoint times the time of it that the request takes, as in
      `cost-per-request-scorer`;
    - `firstToken`: expected time to the first token, by the rates of `endpoint-rates-producer` and the queue;
    - `pace`: expected time between two tokens in the batch with this request;
    - `idle`: the share of the GPUs that is not in use (memory 0.7, compute 0.3), as in `gpu-packing-scorer`.

    Unknown prices are the median of the known ones. Without rates, TFLOPS stand for the first token and the memory
    bandwidth for the pace. A term that is the same for all candidates, or unknown of all, decides nothing.
    """

    plugin_type = "strategy-scorer"
    category = Category.BALANCE
    zero_means = "costs far more, or takes far longer, than the best one"
    reads = (ACCELERATOR,)
    may_read = STRATEGY_INPUTS

    @property
    def without_prices(self) -> str:
        return "dollars count for nothing" if self.parameters.weights()["dollars"] else ""

    def setup(self) -> None:
        self._weights = _Weights(**self.parameters.weights())
        self._dollars = CostPerRequestScorer(CostPerRequestParameters(applies_to="all"))
        self._usage = GpuUsageParameters()

    def score(self, request: Request, candidates: Candidates) -> Floats:
        weights, scores = self._weights, np.zeros(len(candidates))
        if weights.dollars:
            scores += weights.dollars * self._dollars.score(request, candidates)
        rates = request.get(ENDPOINT_RATES)
        if rates is None:
            first_token, pace = (_share_of_most(candidates, name) for name in ("tflops", "bandwidth"))
        else:
            uncached = uncached_tokens(request, candidates, request.get(PREFIX_MATCH))
            first_token = lowest_over(np.maximum(rates.ttft_seconds(candidates, uncached), _LEAST_SECONDS))
            pace = lowest_over(rates.itl_seconds(candidates, batch_sizes(candidates) + 1.0))
        scores += weights.first_token * first_token + weights.pace * pace
        if weights.idle:
            used, _ = estimated_share(candidates, self._usage)
            scores += weights.idle * (1.0 - used)
        mean: Floats = np.clip(scores / sum(weights), 0.0, 1.0)
        return mean


def _share_of_most(candidates: Candidates, name: str) -> Floats:
    """Return a figure of the endpoint over the largest one; 1 for all where it is not known of any."""
    numbers = tag_numbers(candidates, _figure, name)
    largest = numbers.max(initial=0.0)
    return numbers / largest if largest else np.ones(len(numbers))


def _figure(tag: AcceleratorTag, name: str) -> float:
    if name == "tflops":
        return tag.device_tflops("fp16") * max(tag.count, 1)
    bandwidth = (tag.bandwidth_gbps or 0.0) * tag.partition.memory_fraction * max(tag.count, 1)
    return bandwidth if isfinite(bandwidth) and bandwidth > 0 else 0.0
