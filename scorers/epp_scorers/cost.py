# SPDX-License-Identifier: Apache-2.0
"""Prefer cheap accelerators: by price, or by the cost of this request."""

from collections.abc import Callable, Mapping, Sequence
from math import inf, log2, nan
from typing import Annotated, Literal

import msgspec
import numpy as np

from epp.framework import (
    ACCELERATOR,
    ENDPOINT_RATES,
    LOAD_INPUTS,
    PREFIX_MATCH,
    PROMPT_TOKENS,
    AcceleratorTag,
    Candidates,
    Category,
    Floats,
    Natural,
    NonNegative,
    Parameters,
    Positions,
    Request,
    Scorer,
    tag_numbers,
)
from epp.framework.accelerators.arrays import cost_per_hour
from epp.framework.accelerators.tag import AcceleratorKind, CostBasis, SpotPreference
from epp.framework.arrays import any_true
from epp.framework.expected_times import TARGET_IN_REACH, batch_sizes, uncached_tokens
from epp.framework.limits import Positive, Tunable
from epp.framework.plain_yaml import read_list
from epp.framework.quotas import TENANT, Qos
from epp.framework.scoring import lowest_over

_TIERS = {"low": 1.0, "medium": 2.0, "high": 3.0}
_OTHER_TIER = 2.0


class CheapestParameters(Parameters, frozen=True):
    """The price to compare."""

    basis: Literal["endpoint", "device"] = "endpoint"
    """Compare the hourly price of a whole endpoint, or of one of its devices or slices."""
    spot_preference: SpotPreference = "auto"
    """Use of the spot price: on spot nodes only (`auto`), whenever one is known (`always`), or not at all (`never`)."""
    cost_basis: CostBasis = "memory"
    """Share of the device's price that a slice pays: its share of the memory, or of the compute."""


class CheapestScorer(Scorer[CheapestParameters]):
    """1 for the lowest price, `lowest / price` for the others.

    Prices of different kinds are never compared: if any candidate has an hourly price, only those count, else prices
    per million tokens, else cost tiers: low is 1, medium 2, high 3 and any other 2. An endpoint without a price of that
    kind, or on CPUs, gets 0; without any price, all get 0. A price of 0 gets 1, and then any other price gets 0.
    """

    plugin_type = "cheapest-scorer"
    category = Category.AFFINITY
    zero_means = "has no known price, or another endpoint is free of charge"
    reads = (ACCELERATOR,)
    without_prices = "all endpoints get 0, which is no preference"

    def score(self, request: Request, candidates: Candidates) -> Floats:
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


_SECONDS_PER_HOUR = 3600.0


class ThroughputProfile(Parameters, frozen=True, forbid_unknown_fields=False):
    """Throughput of one GPU by request size; keys that AIBrix writes beyond these are ignored."""

    gpu: str
    """Name of the device or of its AcceleratorClass, case-insensitive."""
    tputs: tuple[tuple[NonNegative, ...], ...]
    """Requests per second: one row for each output length, in it one number for each input length."""
    indexes: tuple[tuple[Positive, ...], tuple[Positive, ...]]
    """Output lengths, then input lengths, in tokens."""
    cost: NonNegative | None = None
    """Hourly price of an endpoint in US dollars, if its accelerator has none."""

    def __post_init__(self) -> None:
        outputs, inputs = self.indexes
        if not outputs or not inputs or len(self.tputs) != len(outputs):
            raise ValueError(f"tputs of {self.gpu!r} needs one row for each of the {len(outputs)} output lengths")
        if any(len(row) != len(inputs) for row in self.tputs):
            raise ValueError(
                f"each row of tputs of {self.gpu!r} needs {len(inputs)} numbers, one for each input length"
            )

    def requests_per_second(self, input_tokens: float, output_tokens: float, tolerance: float) -> float | None:
        """Return the throughput at the nearest lengths; None if one is more than `tolerance` powers of 2 away."""
        row = _nearest(self.indexes[0], output_tokens, tolerance)
        column = _nearest(self.indexes[1], input_tokens, tolerance)
        return None if row is None or column is None else self.tputs[row][column]


def _nearest(lengths: Sequence[float], tokens: float, tolerance: float) -> int | None:
    wanted = log2(max(tokens, 1.0))
    distance, position = min((abs(log2(length) - wanted), position) for position, length in enumerate(lengths))
    return position if distance <= tolerance else None


class CostPerRequestParameters(Parameters, frozen=True):
    """Throughput profiles, assumed sizes, and the price to use."""

    profile_path: str = ""
    """YAML or JSON file with a list of profiles, as in `profiles`; read with the configuration."""
    profiles: tuple[ThroughputProfile, ...] = ()
    """Throughput of GPUs by request size, in the format of AIBrix; with precedence over the file."""
    tolerance: Annotated[NonNegative, Tunable(0, 4)] = 0.5
    """Maximum distance of a request from the nearest sizes in an applicable profile, as a power of 2."""
    expected_output_tokens: Natural = 256
    """Output tokens to assume, or the request's own limit if that is lower."""
    batch_size: Natural = 32
    """Batch size assumed for decoding if no profile applies; 0 for the endpoint's current batch plus this request, so
    that a busy endpoint costs less than an idle one."""
    spot_preference: SpotPreference = "auto"
    """Use of the spot price: on spot nodes only (`auto`), whenever one is known (`always`), or not at all (`never`)."""
    applies_to: Literal["in-time", "late", "all"] = "in-time"
    """Requests to score: requests that no endpoint can serve within the latency limits, by the estimate of a
    `slo-fit-filter` (`late`); all others (`in-time`); or `all`."""
    cost_basis: CostBasis = "memory"
    """Share of the device's price that a slice pays: its share of the memory, or of the compute."""
    qos_price_weights: Mapping[Qos, NonNegative] = msgspec.field(default_factory=dict)
    """Factors of this scorer's weight by quality of service (`qos` of the plugin `tenants`); default 1."""
    prefix_match_info_producer_name: str = ""
    """Name of the producer instance to read prefix matches from; empty for the default one."""


class CostPerRequestScorer(Scorer[CostPerRequestParameters]):
    """`least / cost`, where `cost = price / requests per second` and `least` is the lowest cost among the candidates.

    Requests per second come from the profile of the endpoint's GPU, at the nearest output and input length. Without
    such a profile they are `1 / (uncached tokens / prefill rate + output tokens * (alpha / batchSize + beta))` if an
    `endpoint-rates-producer` is configured, else the median of the candidates, so that without any profile the price
    alone decides. The price is the accelerator's, else the profile's, else the median of the candidates; without any
    price, all get 1. An endpoint whose profile gives 0 requests per second gets 0. For requests that `appliesTo`
    excludes, all get 1; by default, these are requests that no endpoint can serve within the latency limits. A fixed
    `batchSize` compares endpoints as if all batches were full.

    With a factor `w` from `qosPriceWeights`, the score is `1 - w * (1 - least / cost)`, but at least 0.
    """

    plugin_type = "cost-per-request-scorer"
    category = Category.BALANCE
    zero_means = "serves no requests by its profile, or costs too much for this class of service"
    reads = (ACCELERATOR,)

    def setup(self) -> None:
        given = self.parameters
        from_file = read_list("profilePath", given.profile_path, ThroughputProfile) if given.profile_path else ()
        self._profiles: dict[str, ThroughputProfile] = {}
        for profile in (*given.profiles, *from_file):
            self._profiles.setdefault(profile.gpu.strip().lower(), profile)
        self._gpus = {gpu: position for position, gpu in enumerate(self._profiles)}
        prices = [profile.cost for profile in self._profiles.values()]
        self._profile_prices = np.array([*prices, None], dtype=np.float64)
        """Hourly price of each profile, NaN if it has none; then NaN for no profile."""
        self._match_key = PREFIX_MATCH.produced_by(given.prefix_match_info_producer_name)
        self.may_read = (ENDPOINT_RATES, self._match_key, PROMPT_TOKENS, TARGET_IN_REACH)
        self._price_weights = {str(qos): weight for qos, weight in given.qos_price_weights.items()}
        if self._price_weights:
            self.may_read += (TENANT,)
        if not given.batch_size:
            self.may_read += LOAD_INPUTS

    @property
    def without_prices(self) -> str:
        return "all endpoints get 1, which is no preference" if np.isnan(self._profile_prices).all() else ""

    def score(self, request: Request, candidates: Candidates) -> Floats:
        if not self._applies(request):
            return np.ones(len(candidates))
        positions = tag_numbers(candidates, self._profile_position).astype(np.intp)
        prices = cost_per_hour(candidates, self.parameters.spot_preference, self.parameters.cost_basis)
        prices = np.where(prices >= 0, prices, self._profile_prices[positions])
        if np.isnan(prices).all():
            return np.ones(len(candidates))
        seconds = self._seconds(request, candidates, positions)
        serves = np.isfinite(seconds)
        hours = np.where(serves, seconds, 1.0) / _SECONDS_PER_HOUR
        return self._weighed(request, lowest_over(np.where(serves, _median_for_unknown(prices) * hours, inf)))

    def _weighed(self, request: Request, scores: Floats) -> Floats:
        """Apply the factor for the tenant's quality of service."""
        tenant = request.get(TENANT) if self._price_weights else None
        weight = 1.0 if tenant is None else self._price_weights.get(tenant.qos, 1.0)
        return scores if weight == 1.0 else np.maximum(0.0, 1.0 - weight * (1.0 - scores))

    def _applies(self, request: Request) -> bool:
        late = request.get(TARGET_IN_REACH) is False
        wanted = self.parameters.applies_to
        return wanted == "all" or late == (wanted == "late")

    def _seconds(self, request: Request, candidates: Candidates, positions: Positions) -> Floats:
        """Return the seconds of endpoint time that the request takes at each candidate."""
        wanted = request.body.max_output_tokens
        expected = self.parameters.expected_output_tokens
        output = expected if wanted is None else min(expected, wanted)
        seconds = self._profile_seconds(request.prompt_tokens, output)[positions]
        rates = request.get(ENDPOINT_RATES)
        if rates is not None:
            uncached = uncached_tokens(request, candidates, request.get(self._match_key))
            fixed = float(self.parameters.batch_size)
            batch = np.full(len(candidates), fixed) if fixed else batch_sizes(candidates) + 1
            busy = rates.prefill_seconds(candidates, uncached) + output * rates.itl_seconds(candidates, batch) / batch
            seconds = np.where(np.isnan(seconds), busy, seconds)
        return _median_for_unknown(seconds)

    def _profile_position(self, tag: AcceleratorTag) -> float:
        names = (*tag.classes, tag.model, tag.product)
        return next((self._gpus[name.lower()] for name in names if name.lower() in self._gpus), -1)

    def _profile_seconds(self, input_tokens: int, output_tokens: int) -> Floats:
        """Return the seconds by each profile, then NaN for no profile."""
        tolerance = self.parameters.tolerance
        tputs = [one.requests_per_second(input_tokens, output_tokens, tolerance) for one in self._profiles.values()]
        return np.array([*(nan if tput is None else 1.0 / tput if tput else inf for tput in tputs), nan])


def _median_for_unknown(values: Floats) -> Floats:
    """Replace NaN by the median of the finite values; by 1 without any."""
    known = values[np.isfinite(values)]
    return np.where(np.isnan(values), np.median(known) if len(known) else 1.0, values)
