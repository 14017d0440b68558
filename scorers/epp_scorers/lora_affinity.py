# SPDX-License-Identifier: Apache-2.0
"""Prefers endpoints that have the requested LoRA adapter loaded, or room to load it."""

import numpy as np

from epp.framework import LORA, Candidates, Category, Floats, LoraState, Request, Scorer

RUNNING_SCORE = 1.0
FREE_SLOT_SCORE = 0.8
WAITING_SCORE = 0.6


class LoraAffinityScorer(Scorer):
    """1 where the adapter is running, 0.8 where it has a free slot, 0.6 where it waits for one, else 0.

    The adapter is the request's model; without a model, 0 for all. The highest value that applies counts, because
    engines list an adapter in use as both running and waiting. A slot is free if the other adapters, running or
    waiting, are fewer than `max_adapters`; with `max_adapters` 0 there is none.
    """

    plugin_type = "lora-affinity-scorer"
    category = Category.AFFINITY
    zero_means = "neither has the adapter nor a free slot for it"
    reads = (LORA,)

    def score(self, request: Request, candidates: Candidates) -> Floats:
        adapter = request.model
        if not adapter:
            return np.zeros(len(candidates))
        return candidates.snapshot.records(LORA).derive(_scores, adapter)[candidates.slots]


def _scores(states: tuple[LoraState, ...], adapter: str) -> Floats:
    return np.array([_score(state, adapter) for state in states], dtype=np.float64)


def _score(state: LoraState, adapter: str) -> float:
    if adapter in state.running:
        return RUNNING_SCORE
    if len((state.running | state.waiting) - {adapter}) < state.max_adapters:
        return FREE_SLOT_SCORE
    return WAITING_SCORE if adapter in state.waiting else 0.0
