# SPDX-License-Identifier: Apache-2.0
"""Prefer endpoints that hold the prompt or its media in their caches, and spread uncached prompts."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Annotated

import numpy as np

from epp.framework import (
    MEDIA_MATCH,
    PREFIX_MATCH,
    Candidates,
    Category,
    Count,
    EndpointObserver,
    Floats,
    Parameters,
    PreRequest,
    Request,
    SchedulingResult,
    Scorer,
    Share,
    Snapshot,
)
from epp.framework.limits import CountOrDefault, Tunable
from epp.framework.plugin_status import endpoint_state


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
    """`matched_media / total_media`: the share of the request's media that the encoder cache is believed to hold.

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


NEUTRAL_SCORE = 0.5


class NoHitLRUParameters(Parameters, frozen=True):
    """Number of endpoints to remember, and the source of prefix matches."""

    lru_size: CountOrDefault = 1024
    """Most endpoints to remember; a forgotten endpoint counts as never used."""
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
            return np.full(count, NEUTRAL_SCORE)
        last_uses = self._uses.of(candidates)
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

    __slots__ = ("_limit", "_numbers", "_order", "_uses")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._uses = 0
        self._order: OrderedDict[int, None] = OrderedDict()
        self._numbers: Floats = np.zeros(0)

    def of(self, candidates: Candidates) -> Floats:
        """Return one number for each candidate."""
        return self.numbers(candidates.snapshot.capacity)[candidates.slots]

    def numbers(self, capacity: int) -> Floats:
        """Return one number for each slot."""
        self._reach(capacity)
        return self._numbers

    def add(self, slot: int) -> None:
        """Mark the slot as the most recently used one, and drop the least recently used one above the limit."""
        self._reach(slot + 1)
        self._uses += 1
        self._numbers[slot] = self._uses
        self._order[slot] = None
        self._order.move_to_end(slot)
        if len(self._order) > self._limit:
            self.forget(next(iter(self._order)))

    def forget(self, slot: int) -> None:
        """Mark the slot as never used."""
        if slot in self._order:
            del self._order[slot]
            self._numbers[slot] = 0

    def _reach(self, length: int) -> None:
        if length > len(self._numbers):
            self._numbers = np.pad(self._numbers, (0, length - len(self._numbers)))
