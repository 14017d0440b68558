# SPDX-License-Identifier: Apache-2.0
"""Prefers endpoints that are awake to those whose model is frozen to memory or disk."""

import numpy as np

from epp.framework import ACCELERATOR, Candidates, Category, Floats, Parameters, Request, Scorer, Share
from epp.framework.accelerators.arrays import WAKE_UP_INPUTS, WakeUpCost


class WakeUpParameters(Parameters, frozen=True):
    """What is taken off the score of a frozen endpoint."""

    memory_penalty: Share = 0.25
    """For one frozen to memory, 0..1."""
    disk_penalty: Share = 1.0
    """For one frozen to disk, 0..1."""


class WakeUpScorer(Scorer[WakeUpParameters]):
    """1 for an endpoint that is awake; `1 - memoryPenalty` or `1 - diskPenalty` for one that is frozen.

    Frozen is an endpoint with the label or pod annotation `llm-d.ai/frozen` or `tensor-fusion.ai/frozen`, `memory` or
    `disk`. With requests in flight or running it is awake, so that one request wakes it up for those that follow.
    """

    plugin_type = "wake-up-scorer"
    category = Category.AFFINITY
    zero_means = "is frozen"
    reads = (ACCELERATOR,)
    may_read = WAKE_UP_INPUTS[1:]

    def setup(self) -> None:
        self._cost = WakeUpCost(self.parameters.memory_penalty, self.parameters.disk_penalty)

    def score(self, request: Request, candidates: Candidates) -> Floats:  # noqa: ARG002
        cost = self._cost.of(candidates)
        return np.ones(len(candidates)) if cost is None else 1.0 - cost
