# SPDX-License-Identifier: Apache-2.0
"""Pickers: choose among the scored candidates."""

from typing import Annotated

import numpy as np
import xxhash
from msgspec import Meta
from numpy.typing import NDArray

from epp.framework import LAST_PICKED, Candidates, Draw, Endpoint, Floats, Mask, Parameters, Picker, Positions, Request
from epp.framework.arrays import highest
from epp.framework.limits import CountOrDefault, Natural


class PickerParameters(Parameters, frozen=True):
    """Parameters of all pickers."""

    max_num_of_endpoints: CountOrDefault = 1
    """Endpoints returned: the target, and fallbacks that the gateway tries in order; fewer if there are fewer."""


class RandomPickerParameters(PickerParameters, frozen=True):
    """Candidates that are drawn among."""

    top_n: Natural = 0
    """Draw among so many candidates with the highest totals, of equal ones at random; 0 for all candidates."""

    def __post_init__(self) -> None:
        """Refuse more endpoints than there are to draw among."""
        if 0 < self.top_n < self.max_num_of_endpoints:
            raise ValueError(
                f"topN is {self.top_n} and maxNumOfEndpoints {self.max_num_of_endpoints}: fallbacks are drawn among "
                "the same candidates, so write a topN of at least maxNumOfEndpoints"
            )


class WeightedRandomPickerParameters(RandomPickerParameters, frozen=True):
    """Candidates that are drawn among, and how much their totals count."""

    temperature: Annotated[float, Meta(ge=0.01, le=100)] = 1.0
    """Chances are in proportion to `total ^ (1 / temperature)`: below 1 the highest totals win more often, above 1
    chances become more equal."""


class MaxScorePicker(Picker[PickerParameters]):
    """Picks the `maxNumOfEndpoints` highest totals, best first, without randomness.

    Equal totals are ordered by least recently picked, then by a hash of the request's seed and the endpoint's id: a
    burst of requests spreads over identical endpoints.
    """

    plugin_type = "max-score-picker"
    may_read = (LAST_PICKED,)

    def pick(self, request: Request, candidates: Candidates, totals: Floats, draw: Draw) -> Positions:  # noqa: ARG002
        if len(totals) == 1:
            return np.zeros(1, dtype=np.intp)
        wanted = min(self.parameters.max_num_of_endpoints, len(totals))
        floor = highest(totals) if wanted == 1 else np.partition(totals, -wanted)[-wanted]
        contenders: Positions = (totals >= floor).nonzero()[0]
        if len(contenders) == 1:
            return contenders
        slots = candidates.slots[contenders]
        last_picked = candidates.snapshot.column(LAST_PICKED)[slots]
        hashes = _mix(candidates.snapshot.endpoints.derive_numbers(_id_hash)[slots], request.seed)
        order = np.lexsort((hashes, last_picked, -totals[contenders]))
        return contenders[order[:wanted]]


class RandomPicker(Picker[RandomPickerParameters]):
    """Picks `maxNumOfEndpoints` of the `topN` candidates uniformly, without replacement.

    Without `topN`, of all candidates, regardless of their totals.
    """

    plugin_type = "random-picker"

    def pick(self, request: Request, candidates: Candidates, totals: Floats, draw: Draw) -> Positions:  # noqa: ARG002
        order = draw().permutation(len(candidates))
        if self.parameters.top_n:
            order = order[_are_top(totals[order], self.parameters.top_n)]
        return order[: self.parameters.max_num_of_endpoints]


class WeightedRandomPicker(Picker[WeightedRandomPickerParameters]):
    """Samples without replacement: the `maxNumOfEndpoints` largest keys `U^(1/w)`, largest first.

    The weight `w` is `total ^ (1 / temperature)`. Method A-ES of Efraimidis and Spirakis (2006). The keys are compared
    as `log(w) - log(-log U)`, a monotone function of them that neither under- nor overflows. Totals of 0 or less come
    last, in random order; if all are, the choice is uniform. With `topN`, only the highest totals are drawn among.
    """

    plugin_type = "weighted-random-picker"

    def pick(self, request: Request, candidates: Candidates, totals: Floats, draw: Draw) -> Positions:  # noqa: ARG002
        noise = draw().gumbel(size=len(totals))  # -log(-log U)
        positive = totals > 0
        keys = np.full(len(totals), -np.inf)
        keys[positive] = np.log(totals[positive]) / self.parameters.temperature + noise[positive]
        order: Positions = np.lexsort((-noise, -keys))
        if self.parameters.top_n:
            order = order[_are_top(totals[order], self.parameters.top_n)]
        return order[: self.parameters.max_num_of_endpoints]


def _are_top(totals: Floats, count: int) -> Mask:
    """Mark the `count` highest totals, of equal ones the first."""
    top = np.zeros(len(totals), dtype=np.bool_)
    top[np.argsort(-totals, kind="stable")[:count]] = True
    return top


def _id_hash(endpoint: Endpoint | None) -> float:
    """Hash an endpoint's id to 53 bits, which a float64 holds exactly."""
    return 0.0 if endpoint is None else float(xxhash.xxh3_64_intdigest(endpoint.id.encode()) >> 11)


def _mix(id_hashes: Floats, seed: int) -> NDArray[np.uint64]:
    """Hash endpoint ids together with the seed (the finalizer of splitmix64)."""
    mixed = id_hashes.astype(np.uint64) ^ np.uint64(seed)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
