"""Picks at random, in proportion to the scores."""

import numpy as np

from epp.framework import Candidates, Draw, Floats, Picker, Positions, Request
from epp.plugins.pickers.parameters import PickerParameters


class WeightedRandomPicker(Picker[PickerParameters]):
    """Samples without replacement: the `maxNumOfEndpoints` largest keys `U^(1/total)`, largest first.

    Method A-ES of Efraimidis and Spirakis (2006). The keys are compared as `log(total) - log(-log U)`, a monotone
    function of them that neither under- nor overflows. Totals of 0 or less come last, in random order: where all
    are, the choice is uniform.
    """

    plugin_type = "weighted-random-picker"

    def pick(self, request: Request, candidates: Candidates, totals: Floats, draw: Draw) -> Positions:  # noqa: ARG002
        noise = draw().gumbel(size=len(totals))  # -log(-log U)
        positive = totals > 0
        keys = np.full(len(totals), -np.inf)
        keys[positive] = np.log(totals[positive]) + noise[positive]
        return np.lexsort((-noise, -keys))[: self.parameters.max_num_of_endpoints]
