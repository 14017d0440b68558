# SPDX-License-Identifier: Apache-2.0
"""Scores accelerators by the policy in the request's selection."""

from functools import lru_cache
from typing import Any, Literal

import numpy as np

from epp.framework import (
    ACCELERATOR,
    ACCELERATOR_SELECTION,
    KV_USAGE,
    LOAD_INPUTS,
    Candidates,
    Category,
    Floats,
    Parameters,
    Request,
    Scorer,
)
from epp.framework.accelerators.selection import ANY, Selection
from epp.framework.quantities import GIB
from epp_scorers.capability import BestFitParameters, BestFitScorer, MostCapableParameters, MostCapableScorer
from epp_scorers.cost import CheapestParameters, CheapestScorer
from epp_scorers.preference_order import FirstAvailableParameters, FirstAvailableScorer

_REMEMBERED = 256
"""Scorers kept, one for each selection; clients may send any number of selections."""


class AcceleratorPolicyParameters(Parameters, frozen=True):
    """Policy for selections without one."""

    default_policy: Literal["", "best-fit", "cheapest", "most-capable", "first-available"] = ""
    """Policy where the selection names none; empty for no preference."""


class AcceleratorPolicyScorer(Scorer[AcceleratorPolicyParameters]):
    """The score of `best-fit-scorer`, `cheapest-scorer`, `most-capable-scorer` or `first-available-scorer`.

    The `policy` of the selection that `accelerator-selection-producer` makes for the request and profile names the
    scorer; minimum memory, TFLOPS, precisions, spot preference and order of classes in the selection are its
    parameters. Without a policy, 0 for all, which is no preference.
    """

    plugin_type = "accelerator-policy-scorer"
    category = Category.DISTRIBUTION
    zero_means = "fits the policy worst, or no policy applies"
    reads = (ACCELERATOR_SELECTION, ACCELERATOR)
    may_read = (KV_USAGE, *LOAD_INPUTS)

    @property
    def without_prices(self) -> str:
        return CheapestScorer.without_prices if self.parameters.default_policy == "cheapest" else ""

    def setup(self) -> None:
        self._scorer_for = lru_cache(_REMEMBERED)(self._made_for)

    def score(self, request: Request, candidates: Candidates) -> Floats:
        selections = request.get(ACCELERATOR_SELECTION)
        selection = ANY if selections is None else selections.of(candidates.profile)
        if not (selection.policy or self.parameters.default_policy):
            return np.zeros(len(candidates))
        return self._scorer_for(selection).score(request, candidates)

    def _made_for(self, selection: Selection) -> Scorer[Any]:
        precisions: tuple[Any, ...] = selection.preferred_precisions
        match selection.policy or self.parameters.default_policy:
            case "cheapest":
                return CheapestScorer(CheapestParameters(spot_preference=selection.spot_preference or "auto"))
            case "most-capable":
                return MostCapableScorer(MostCapableParameters(preferred_precisions=precisions or ("fp16",)))
            case "first-available":
                return FirstAvailableScorer(FirstAvailableParameters(classes=selection.preference_order))
            case _:
                return BestFitScorer(
                    BestFitParameters(
                        min_memory=selection.min_memory_bytes / GIB or None,
                        min_compute_tflops=selection.min_tflops or None,
                        preferred_precisions=precisions,
                    )
                )
