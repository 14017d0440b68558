# SPDX-License-Identifier: Apache-2.0
"""Pickers: choose endpoints from the scored candidates."""

from typing import Annotated

import numpy as np
import xxhash
from msgspec import Meta
from numpy.typing import NDArray

from epp.framework import LAST_PICKED, Candidates, Draw, Endpoint, Floats, Parameters, Picker, Positions, Request
from epp.framework.arrays import ROUNDING, highest
from epp.framework.limits import CountOrDefault, Natural, NonNegative, Tunable


class PickerParameters(Parameters, frozen=True):
    """Parameters of all pickers."""

    max_num_of_endpoints: CountOrDefault = 1
    """Endpoints returned: the target, and fallbacks that the gateway tries in order; fewer if there are fewer."""
    close_score_epsilon: NonNegative | None = None
    """Only endpoints whose total is at most this much below that of the target are fallbacks; by default, all are. A
    total is the sum of weight times score, so that 0.1 is a tenth of a scorer of weight 1."""


class RandomPickerParameters(PickerParameters, frozen=True):
    """Number of candidates to draw from."""

    top_n: Natural = 0
    """Draw from this many candidates with the highest totals, ties broken at random; 0 for all candidates."""

    def __post_init__(self) -> None:
        if 0 < self.top_n < self.max_num_of_endpoints:
            raise ValueError(
                f"topN is {self.top_n} and maxNumOfEndpoints {self.max_num_of_endpoints}: fallbacks are drawn from "
                "the same candidates, so write a topN of at least maxNumOfEndpoints"
            )


class WeightedRandomPickerParameters(RandomPickerParameters, frozen=True):
    """Number of candidates to draw from, and the influence of their totals."""

    temperature: Annotated[float, Meta(ge=0.01, le=100), Tunable(0.05, 20, log=True)] = 1.0
    """The chance of a candidate is proportional to `total ^ (1 / temperature)`: values below 1 favour the highest
    totals, values above 1 make chances more equal."""


class MaxScorePicker(Picker[PickerParameters]):
    """Picks the `maxNumOfEndpoints` highest totals, best first, without randomness.

    Equal totals are ordered by least recently picked, then by a hash of the request's seed and the endpoint's id: a
    burst of requests spreads over identical endpoints.
    """

    plugin_type = "max-score-picker"
    may_read = (LAST_PICKED,)

    def pick(self, request: Request, candidates: Candidates, totals: Floats, draw: Draw) -> Positions:
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
        return _close(contenders[order[:wanted]], totals, self.parameters)


class RandomPicker(Picker[RandomPickerParameters]):
    """Picks `maxNumOfEndpoints` of the `topN` best candidates at random, or of all candidates without `topN`."""

    plugin_type = "random-picker"

    def pick(self, request: Request, candidates: Candidates, totals: Floats, draw: Draw) -> Positions:
        return _first(draw().permutation(len(candidates)), totals, self.parameters)


class WeightedRandomPicker(Picker[WeightedRandomPickerParameters]):
    """Samples without replacement: the `maxNumOfEndpoints` largest keys `U^(1/w)`, largest first.

    The weight `w` is `total ^ (1 / temperature)`. Method A-ES of Efraimidis and Spirakis (2006). The keys are compared
    as `log(w) - log(-log U)`, a monotone function of them that neither under- nor overflows. Totals of 0 or less come
    last, in random order; if there are no others, the choice is uniform. With `topN`, only the highest totals count.
    """

    plugin_type = "weighted-random-picker"

    def pick(self, request: Request, candidates: Candidates, totals: Floats, draw: Draw) -> Positions:
        noise = draw().gumbel(size=len(totals))  # -log(-log U)
        positive = totals > 0
        keys = np.full(len(totals), -np.inf)
        keys[positive] = np.log(totals[positive]) / self.parameters.temperature + noise[positive]
        return _first(np.lexsort((-noise, -keys)), totals, self.parameters)


def _first(order: Positions, totals: Floats, parameters: RandomPickerParameters) -> Positions:
    """Return the first positions in this order among the `topN` highest totals; among equal totals, the first count."""
    if parameters.top_n:
        order = order[np.sort(np.argsort(-totals[order], kind="stable")[: parameters.top_n])]
    return _close(order[: parameters.max_num_of_endpoints], totals, parameters)


def _close(picked: Positions, totals: Floats, parameters: PickerParameters) -> Positions:
    """Return the target, and of the fallbacks those with a total close to its own."""
    epsilon = parameters.close_score_epsilon
    if epsilon is None or len(picked) == 1:
        return picked
    near: Positions = picked[totals[picked] >= totals[picked[0]] - epsilon - ROUNDING]
    return near


def _id_hash(endpoint: Endpoint | None) -> float:
    """Hash an endpoint's id to 53 bits, which a float64 holds exactly."""
    return 0.0 if endpoint is None else float(xxhash.xxh3_64_intdigest(endpoint.id.encode()) >> 11)


def _mix(id_hashes: Floats, seed: int) -> NDArray[np.uint64]:
    """Hash endpoint ids together with the seed (the finalizer of splitmix64)."""
    mixed = id_hashes.astype(np.uint64) ^ np.uint64(seed)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
