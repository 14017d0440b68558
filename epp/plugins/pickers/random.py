"""Picks uniformly at random."""

from epp.framework import Candidates, Draw, Floats, Picker, Positions, Request
from epp.plugins.pickers.parameters import PickerParameters


class RandomPicker(Picker[PickerParameters]):
    """Takes `maxNumOfEndpoints` candidates uniformly, without replacement, whatever their totals."""

    plugin_type = "random-picker"

    def pick(self, request: Request, candidates: Candidates, totals: Floats, draw: Draw) -> Positions:  # noqa: ARG002
        return draw().permutation(len(candidates))[: self.parameters.max_num_of_endpoints]
