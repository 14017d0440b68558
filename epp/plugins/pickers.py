# SPDX-License-Identifier: Apache-2.0
"""Pickers: choose among the scored candidates."""

import numpy as np
import xxhash
from numpy.typing import NDArray

from epp.framework import LAST_PICKED, Candidates, Draw, Endpoint, Floats, Parameters, Picker, Positions, Request
from epp.framework.arrays import highest
from epp.framework.limits import CountOrDefault


class PickerParameters(Parameters, frozen=True):
    """Parameters of all pickers."""

    max_num_of_endpoints: CountOrDefault = 1
    """Endpoints returned: the target, and fallbacks that the gateway tries in order; fewer if there are fewer."""


class MaxScorePicker(Picker[PickerParameters]):
    """Picks the `maxNumOfEndpoints` highest totals, best first, without randomness.

    Equal totals are ordered by least recently picked, then by a hash of the request's seed and the endpoint's id: a
    burst of requests spreads over identical endpoints.
    """

    plugin_type = "max-score-picker"
    may_read = (LAST_PICKED,)

    def pick(self, request: Request, candidates: Candidates, totals: Floats, draw: Draw) -> Positions:  # noqa: ARG002
        wanted = min(self.parameters.max_num_of_endpoints, len(totals))
        floor = highest(totals) if wanted == 1 else np.partition(totals, -wanted)[-wanted]
        contenders: Positions = (totals >= floor).nonzero()[0]
        if len(contenders) == 1:
            return contenders
        slots = candidates.slots[contenders]
        last_picked = candidates.snapshot.column(LAST_PICKED)[slots]
        hashes = _mix(candidates.snapshot.endpoints.derive(_id_hashes)[slots], request.seed)
        order = np.lexsort((hashes, last_picked, -totals[contenders]))
        return contenders[order[:wanted]]


class RandomPicker(Picker[PickerParameters]):
    """Picks `maxNumOfEndpoints` candidates uniformly, without replacement, regardless of their totals."""

    plugin_type = "random-picker"

    def pick(self, request: Request, candidates: Candidates, totals: Floats, draw: Draw) -> Positions:  # noqa: ARG002
        return draw().permutation(len(candidates))[: self.parameters.max_num_of_endpoints]


class WeightedRandomPicker(Picker[PickerParameters]):
    """Samples without replacement: the `maxNumOfEndpoints` largest keys `U^(1/total)`, largest first.

    Method A-ES of Efraimidis and Spirakis (2006). The keys are compared as `log(total) - log(-log U)`, a monotone
    function of them that neither under- nor overflows. Totals of 0 or less come last, in random order; if all are,
    the choice is uniform.
    """

    plugin_type = "weighted-random-picker"

    def pick(self, request: Request, candidates: Candidates, totals: Floats, draw: Draw) -> Positions:  # noqa: ARG002
        noise = draw().gumbel(size=len(totals))  # -log(-log U)
        positive = totals > 0
        keys = np.full(len(totals), -np.inf)
        keys[positive] = np.log(totals[positive]) + noise[positive]
        return np.lexsort((-noise, -keys))[: self.parameters.max_num_of_endpoints]


def _id_hashes(endpoints: tuple[Endpoint | None, ...]) -> Floats:
    """Hash each endpoint's id to 53 bits, which a float64 holds exactly."""
    return np.array([0 if e is None else xxhash.xxh3_64_intdigest(e.id.encode()) >> 11 for e in endpoints], np.float64)


def _mix(id_hashes: Floats, seed: int) -> NDArray[np.uint64]:
    """Hash endpoint ids together with the seed (the finalizer of splitmix64)."""
    mixed = id_hashes.astype(np.uint64) ^ np.uint64(seed)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
