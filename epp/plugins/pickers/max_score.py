"""Picks the highest scores; ties go to the least recently picked endpoint."""

import numpy as np
import xxhash
from numpy.typing import NDArray

from epp.framework import Candidates, Draw, Endpoint, Floats, Picker, Positions, Request
from epp.framework.snapshot import LAST_PICKED
from epp.plugins.pickers.parameters import PickerParameters


class MaxScorePicker(Picker[PickerParameters]):
    """Takes the `maxNumOfEndpoints` highest totals, best first, and draws no random number.

    Equal totals are ordered by least recently picked, then by a hash of the request's seed and the endpoint's id: a
    burst of requests spreads over identical endpoints.
    """

    plugin_type = "max-score-picker"
    may_read = (LAST_PICKED,)

    def pick(self, request: Request, candidates: Candidates, totals: Floats, draw: Draw) -> Positions:  # noqa: ARG002
        wanted = min(self.parameters.max_num_of_endpoints, len(totals))
        floor = totals.max() if wanted == 1 else np.partition(totals, -wanted)[-wanted]
        contenders = np.flatnonzero(totals >= floor)
        if len(contenders) == 1:
            return contenders
        slots = candidates.slots[contenders]
        last_picked = candidates.snapshot.column(LAST_PICKED)[slots]
        hashes = _mix(candidates.snapshot.endpoints.derive(_id_hashes)[slots], request.seed)
        order = np.lexsort((hashes, last_picked, -totals[contenders]))
        return contenders[order[:wanted]]


def _id_hashes(endpoints: tuple[Endpoint | None, ...]) -> Floats:
    """Hash each endpoint's id to 53 bits, which a float64 holds exactly."""
    return np.array([0 if e is None else xxhash.xxh3_64_intdigest(e.id.encode()) >> 11 for e in endpoints], np.float64)


def _mix(id_hashes: Floats, seed: int) -> NDArray[np.uint64]:
    """Hash endpoint ids together with the seed (the finalizer of splitmix64)."""
    mixed = id_hashes.astype(np.uint64) ^ np.uint64(seed)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
