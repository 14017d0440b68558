# SPDX-License-Identifier: Apache-2.0
"""Power of two choices: a picker only for the comparison of `make bench-herding`."""

import numpy as np

from epp.framework import Candidates, Draw, Floats, Picker, Positions, Request
from epp.plugins.profile_handlers import RandomPickerParameters


class TwoChoices(Picker[RandomPickerParameters]):
    """Draws two of the `topN` highest totals (of all without `topN`), and picks the higher one."""

    plugin_type = "two-choices"

    def pick(self, request: Request, candidates: Candidates, totals: Floats, draw: Draw) -> Positions:
        generator = draw()
        order = generator.permutation(len(totals))
        best = order[np.argsort(-totals[order], kind="stable")[: self.parameters.top_n or len(totals)]]
        drawn = generator.permutation(best)[:2]
        return drawn[np.argsort(-totals[drawn], kind="stable")[:1]]
