# SPDX-License-Identifier: Apache-2.0
"""Prefers the endpoint with the cheapest accelerators."""

from collections.abc import Callable
from typing import Literal

import numpy as np

from epp.framework import (
    ACCELERATOR,
    AcceleratorTag,
    Candidates,
    Category,
    Floats,
    Parameters,
    Request,
    Scorer,
    tag_numbers,
)
from epp.framework.accelerators.tag import AcceleratorKind, CostBasis, SpotPreference
from epp.framework.arrays import any_true
from epp.framework.scoring import lowest_over

_TIERS = {"low": 1.0, "medium": 2.0, "high": 3.0}
_OTHER_TIER = 2.0


class CheapestParameters(Parameters, frozen=True):
    """The price to compare."""

    basis: Literal["endpoint", "device"] = "endpoint"
    """Compare the hourly price of a whole endpoint, or of one of its devices or slices."""
    spot_preference: SpotPreference = "auto"
    """Use of the spot price: on spot nodes only (`auto`), wherever one is known (`always`), or not at all (`never`)."""
    cost_basis: CostBasis = "memory"
    """Share of the device's price that a slice pays: its share of the memory, or of the compute."""


class CheapestScorer(Scorer[CheapestParameters]):
    """1 for the lowest price, `lowest / price` for the others.

    Prices of different kinds are never compared: if any candidate has an hourly price, only those count, else prices
    per million tokens, else cost tiers, with low as 1, medium as 2, high as 3 and any other as 2. An endpoint without a
    price of that kind, or on CPUs, gets 0; without any price, all do. If the lowest price is 0, it gets 1 and any other
    0.
    """

    plugin_type = "cheapest-scorer"
    category = Category.AFFINITY
    zero_means = "has no known price, or another one is free of charge"
    reads = (ACCELERATOR,)
    without_prices = "all endpoints get 0, which is no preference"

    def score(self, request: Request, candidates: Candidates) -> Floats:  # noqa: ARG002
        for price in (self._hourly, _per_million_tokens, _tier):
            prices = tag_numbers(candidates, _of_accelerators, price)
            known = np.isfinite(prices) & (prices >= 0)
            if any_true(known):
                return lowest_over(np.where(known, prices, np.inf))
        return np.zeros(len(candidates))

    def _hourly(self, tag: AcceleratorTag) -> float | None:
        price = tag.cost_per_hour(self.parameters.spot_preference, self.parameters.cost_basis)
        if price is None or self.parameters.basis == "endpoint":
            return price
        return price / max(tag.count, 1)


def _of_accelerators(tag: AcceleratorTag, price: Callable[[AcceleratorTag], float | None]) -> float | None:
    return None if tag.kind is AcceleratorKind.CPU else price(tag)


def _per_million_tokens(tag: AcceleratorTag) -> float | None:
    return tag.cost.per_million_tokens


def _tier(tag: AcceleratorTag) -> float | None:
    return _TIERS.get(tag.cost.tier.lower(), _OTHER_TIER) if tag.cost.tier else None
