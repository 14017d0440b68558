# SPDX-License-Identifier: Apache-2.0
"""Prefer endpoints that match the request: adapter, session, header, prompt length, cached prompt or media."""

import re
from collections import OrderedDict
from collections.abc import Sequence
from math import inf, nan
from typing import Annotated

import numpy as np

from epp.framework import (
    LORA,
    MEDIA_MATCH,
    PREFIX_MATCH,
    PROMPT_TOKENS,
    Candidates,
    Category,
    Count,
    DropCause,
    Endpoint,
    EndpointObserver,
    Filter,
    FilterParameters,
    Floats,
    LoraState,
    Mask,
    Name,
    Parameters,
    PreRequest,
    Request,
    SchedulingResult,
    Scorer,
    Share,
    Snapshot,
)
from epp.framework.arrays import everyone
from epp.framework.limits import CountOrDefault, Tunable
from epp.framework.plugin_status import endpoint_state
from epp.framework.session_affinity import SessionAffinity, SessionAffinityParameters


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
        return candidates.snapshot.records(LORA).derive_numbers(_score, adapter)[candidates.slots]


def _score(state: LoraState, adapter: str) -> float:
    if adapter in state.running:
        return 1.0
    if len((state.running | state.waiting) - {adapter}) < state.max_adapters:
        return 0.8
    return 0.6 if adapter in state.waiting else 0.0


class SessionAffinityScorer(Scorer[SessionAffinityParameters], SessionAffinity[SessionAffinityParameters]):
    """1 for the endpoint that last served the request's session, 0 for all others.

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
    zero_means = "has a label other than the value of the header, or the header is missing"

    def score(self, request: Request, candidates: Candidates) -> Floats:
        wanted = request.headers.get(self.parameters.header_name.lower())
        if not wanted:
            return np.zeros(len(candidates))
        return candidates.where_label_is(self.parameters.label_key, wanted).astype(np.float64)


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
            return everyone(len(candidates))
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
        return np.where(np.isnan(low), 0.5, np.where(distance == 0.0, inside, outside))

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


class PrefixCacheParameters(Parameters, frozen=True):
    """Weights of a match's length and of its share of the prompt."""

    prefix_match_info_producer_name: str = ""
    """Name of the producer instance to read prefix matches from; empty for the default one."""
    match_length_weight: Annotated[Share, Tunable(0, 1)] = 0.0
    """Weight `w` of the match's length; its share of the prompt gets the rest."""
    match_length_scale_tokens: Count = 8192
    """Match length in tokens that counts in full."""


class PrefixCacheScorer(Scorer[PrefixCacheParameters]):
    """`w * min(1, matched_tokens / scale)^2 + (1 - w) * matched_blocks / total_blocks`.

    0 for all without a match record, or without a prompt.
    """

    plugin_type = "prefix-cache-scorer"
    category = Category.AFFINITY
    zero_means = "holds nothing of the prompt"

    def setup(self) -> None:
        self._key = PREFIX_MATCH.produced_by(self.parameters.prefix_match_info_producer_name)
        self.reads = (self._key,)

    def score(self, request: Request, candidates: Candidates) -> Floats:
        match = request.get(self._key)
        if match is None or match.total_blocks == 0:
            return np.zeros(len(candidates))
        share = match.shares(candidates)
        weight = self.parameters.match_length_weight
        if weight == 0.0:
            return share
        length = np.minimum(1.0, match.matched_tokens(candidates) / self.parameters.match_length_scale_tokens)
        return weight * length**2 + (1.0 - weight) * share


class MMEmbeddingsCacheParameters(Parameters, frozen=True):
    """Source of matches."""

    producer_name: str = ""
    """Name of the producer instance to read matches of media from; empty for the default one."""


class MMEmbeddingsCacheScorer(Scorer[MMEmbeddingsCacheParameters]):
    """`matched_media / total_media`: the share of the request's media that the encoder cache is expected to hold.

    0 for all without a match record, or without media.
    """

    plugin_type = "mm-embeddings-cache-scorer"
    category = Category.AFFINITY
    zero_means = "holds none of the media"

    def setup(self) -> None:
        self._key = MEDIA_MATCH.produced_by(self.parameters.producer_name)
        self.reads = (self._key,)

    def score(self, request: Request, candidates: Candidates) -> Floats:
        match = request.get(self._key)
        if match is None or match.total == 0:
            return np.zeros(len(candidates))
        share: Floats = match.matched[candidates.slots] / float(match.total)
        return share


class NoHitLRUParameters(Parameters, frozen=True):
    """Number of endpoints to remember, and the source of prefix matches."""

    lru_size: CountOrDefault = 1024
    """Maximum endpoints to remember; a forgotten endpoint counts as never used."""
    prefix_match_info_producer_name: str = ""
    """Name of the producer instance to read prefix matches from; empty for the default one."""
    prefix_plugin_type: str = ""
    """Deprecated: accepted and not used."""
    prefix_plugin_name: str = ""
    """Deprecated: accepted and not used; write `prefixMatchInfoProducerName`."""


class NoHitLRUScorer(Scorer[NoHitLRUParameters], PreRequest[NoHitLRUParameters], EndpointObserver[NoHitLRUParameters]):
    """0.5 for all if any candidate holds a block of the prompt; else `1 - rank / (n - 1)` by least recent use.

    A request is cold if no candidate holds a block of its prompt, or without a prefix match record. For a cold request,
    candidates never used by a cold request get 1. The others follow, least recently used first; their ranks count all
    candidates before them, so that the most recently used one gets 0. A single candidate gets 1. A cold request counts
    as a use of the first endpoint picked by each profile in which it was cold, not of the fallbacks.
    """

    plugin_type = "no-hit-lru-scorer"
    zero_means = "was used last for an uncached prompt"

    def setup(self) -> None:
        self._match_key = PREFIX_MATCH.produced_by(self.parameters.prefix_match_info_producer_name)
        self._uses = _LastUses(self.parameters.lru_size)
        self.reads = (self._match_key,)

    @property
    def warnings(self) -> Sequence[str]:
        unused = (
            ("prefixPluginType", self.parameters.prefix_plugin_type),
            ("prefixPluginName", self.parameters.prefix_plugin_name),
        )
        return [f"{name} is not used: write prefixMatchInfoProducerName" for name, value in unused if value]

    def score(self, request: Request, candidates: Candidates) -> Floats:
        count = len(candidates)
        if not self._is_cold(request, candidates):
            return np.full(count, 0.5)
        last_uses = self._uses.numbers(candidates.snapshot.capacity)[candidates.slots]
        ranks = np.empty(count)
        ranks[last_uses.argsort()] = np.arange(count)
        return np.where(last_uses == 0, 1.0, 1.0 - ranks / max(1, count - 1))

    def pre_request(self, request: Request, result: SchedulingResult) -> None:
        for profile in result.profiles.values():
            if profile is not None and self._is_cold(request, profile.candidates):
                self._uses.add(profile.slot)

    def dump_state(self, snapshot: Snapshot) -> object | None:
        return endpoint_state(snapshot, {"lastUse": self._uses.numbers(snapshot.capacity)})

    def slots_removed(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._uses.forget(slot)

    def _is_cold(self, request: Request, candidates: Candidates) -> bool:
        match = request.get(self._match_key)
        return match is None or not match.blocks(candidates).any()


class _LastUses:
    """Sequence number of each slot's last use, for the `limit` most recently used slots; 0 for the others."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._uses = 0
        self._order: OrderedDict[int, None] = OrderedDict()
        self._numbers: Floats = np.zeros(0)

    def numbers(self, capacity: int) -> Floats:
        """Return the numbers of at least `capacity` slots."""
        if capacity > len(self._numbers):
            self._numbers = np.pad(self._numbers, (0, capacity - len(self._numbers)))
        return self._numbers

    def add(self, slot: int) -> None:
        """Mark the slot as the most recently used one, and drop the least recently used one above the limit."""
        self._uses += 1
        self.numbers(slot + 1)[slot] = self._uses
        self._order[slot] = None
        self._order.move_to_end(slot)
        if len(self._order) > self._limit:
            self.forget(next(iter(self._order)))

    def forget(self, slot: int) -> None:
        """Mark the slot as never used."""
        if slot in self._order:
            del self._order[slot]
            self._numbers[slot] = 0
