# SPDX-License-Identifier: Apache-2.0
"""Prefer endpoints that match the request: its LoRA adapter, its session or a header."""

import numpy as np

from epp.framework import LORA, Candidates, Category, Floats, LoraState, Name, Parameters, Request, Scorer
from epp.framework.sessions import SessionAffinity, SessionAffinityParameters

RUNNING_SCORE = 1.0
FREE_SLOT_SCORE = 0.8
WAITING_SCORE = 0.6


class LoraAffinityScorer(Scorer):
    """1 if the adapter is running, 0.8 if a slot is free for it, 0.6 if it waits for a slot, else 0.

    The adapter is the request's model; without a model, 0 for all. The highest value that applies counts, because
    engines list an adapter in use as both running and waiting. A slot is free if the other adapters, running or
    waiting, are fewer than `max_adapters`; with `max_adapters` 0 there is none.
    """

    plugin_type = "lora-affinity-scorer"
    category = Category.AFFINITY
    zero_means = "has neither the adapter nor a free slot for it"
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


class SessionAffinityScorer(Scorer[SessionAffinityParameters], SessionAffinity[SessionAffinityParameters]):
    """1 for the endpoint that served the request's session last, 0 for all others.

    With tokens, the response header is the base64 of `namespace/name` of the endpoint that served the request, which
    may be a fallback. With session ids, a session belongs to the endpoint chosen last, and the response gets no header.
    A malformed token is ignored. Each instance of this scorer and of `session-affinity-filter` has its own memory.
    """

    plugin_type = "session-affinity-scorer"
    category = Category.AFFINITY
    zero_means = "did not serve this session last"

    def score(self, request: Request, candidates: Candidates) -> Floats:
        return self.bound(request, candidates).astype(np.float64)


class HeaderLabelAffinityParameters(Parameters, frozen=True):
    """The header and the label to compare."""

    header_name: Name
    """Request header, case-insensitive."""
    label_key: Name
    """Label to compare with the header's value."""


class HeaderLabelAffinityScorer(Scorer[HeaderLabelAffinityParameters]):
    """1 if the label equals the header's value, else 0; 0 for all if the header is missing or empty."""

    plugin_type = "header-label-affinity-scorer"
    category = Category.AFFINITY
    zero_means = "has another label than the header asks for, or the header is missing"

    def score(self, request: Request, candidates: Candidates) -> Floats:
        wanted = request.headers.get(self.parameters.header_name.lower())
        if not wanted:
            return np.zeros(len(candidates))
        return candidates.where_label_is(self.parameters.label_key, wanted).astype(np.float64)
