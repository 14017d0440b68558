# SPDX-License-Identifier: Apache-2.0
"""Prefer endpoints that match the request: its LoRA adapter, session, header or prompt length."""

import re
from math import inf, nan

import numpy as np

from epp.framework import (
    LORA,
    PROMPT_TOKENS,
    Candidates,
    Category,
    DropCause,
    Endpoint,
    Filter,
    FilterParameters,
    Floats,
    LoraState,
    Mask,
    Name,
    Parameters,
    Request,
    Scorer,
)
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


UNLABELLED_SCORE = 0.5
_RANGE = re.compile(r"\s*([0-9]{1,15})\s*-\s*([0-9]{1,15})\s*")
_NOTHING = (inf, -inf)
"""Range of a malformed label: it includes no length, and its distance to every length is infinite."""


class ContextLengthAwareParameters(FilterParameters, frozen=True):
    """The label with the range of prompt lengths, and whether to filter by it."""

    label: Name = "llm-d.ai/context-length-range"
    """Label with the range, `min-max` in tokens, both ends included."""
    enable_filtering: bool = False
    """Also drop endpoints whose range does not include the prompt's length."""


class ContextLengthAware(Filter[ContextLengthAwareParameters], Scorer[ContextLengthAwareParameters]):
    """Compares the prompt's length in tokens, without output, to the range in the endpoint's label.

    Inside the range: `0.3 + 0.7 * (0.7 / (1 + width / 10000) + 0.3 * headroom / width)`, where `headroom` is `max`
    minus the prompt's tokens, and 1 for a range of width 0: a narrow range scores higher than a wide one. Outside: `0.3
    / (1 + distance / 1000)`, where `distance` is the number of tokens between prompt and range. 0.5 without the label;
    0 if the label is not `min-max` with `min <= max`, a range that includes no length. With `enableFiltering`,
    endpoints whose range does not include the prompt's length are dropped, and endpoints without the label are kept;
    without it, all are kept.
    """

    plugin_type = "context-length-aware"
    drops = DropCause.CONSTRAINT
    drop_means = "is for prompts of another length"
    category = Category.AFFINITY
    zero_means = "has a label that is not a range of lengths"
    may_read = (PROMPT_TOKENS,)

    def setup(self) -> None:
        self.may_empty = self.parameters.enable_filtering

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        if not self.parameters.enable_filtering:
            return np.ones(len(candidates), dtype=np.bool_)
        low, high = self._ranges(candidates)
        outside: Mask = (request.prompt_tokens < low) | (request.prompt_tokens > high)
        return ~outside

    def score(self, request: Request, candidates: Candidates) -> Floats:
        tokens = request.prompt_tokens
        low, high = self._ranges(candidates)
        width = high - low
        headroom = np.divide(high - tokens, width, out=np.zeros(len(width)), where=width > 0)
        distance = np.maximum(0.0, np.maximum(low - tokens, tokens - high))
        inside = np.where(width == 0.0, 1.0, 0.3 + 0.7 * (0.7 / (1.0 + width / 10000.0) + 0.3 * headroom))
        outside = 0.3 / (1.0 + distance / 1000.0)
        return np.where(np.isnan(low), UNLABELLED_SCORE, np.where(distance == 0.0, inside, outside))

    def _ranges(self, candidates: Candidates) -> Floats:
        """Return two rows, the lower and the upper end of each candidate's range in tokens; NaN without the label."""
        return candidates.snapshot.endpoints.derive(_labelled_ranges, self.parameters.label)[:, candidates.slots]


def _labelled_ranges(endpoints: tuple[Endpoint | None, ...], label: str) -> Floats:
    return np.array([_range(None if e is None else e.labels.get(label)) for e in endpoints], dtype=np.float64).T


def _range(text: str | None) -> tuple[float, float]:
    if text is None:
        return nan, nan
    found = _RANGE.fullmatch(text)
    if found is None or int(found[1]) > int(found[2]):
        return _NOTHING
    return float(found[1]), float(found[2])
