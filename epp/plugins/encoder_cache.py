# SPDX-License-Identifier: Apache-2.0
"""Produce the images and other media of a request that each endpoint is expected to hold in its encoder cache."""

from array import array
from collections import Counter
from collections.abc import Sequence
from secrets import token_bytes

import msgspec
import numpy as np
import xxhash

from epp.framework import (
    MEDIA_MATCH,
    Candidates,
    DataKey,
    EndpointObserver,
    MediaMatch,
    Parameters,
    PreRequest,
    Producer,
    Request,
    SchedulingResult,
    Snapshot,
)
from epp.framework.limits import CountOrDefault
from epp.framework.plugin_status import Distribution, PluginMetric, Sample, endpoint_state
from epp.plugins.prefix_cache.index import PrefixIndex

_MB_PER_ITEM = 2
_QUERIES = PluginMetric(
    "encoder_cache_queries", "Different media of routed requests, by modality.", ("modality",), is_counter=True
)
_HITS = PluginMetric(
    "encoder_cache_hits",
    "Those that the endpoint picked was believed to hold.",
    ("pod", "modality"),
    is_counter=True,
)
_HIT_RATIO = PluginMetric(
    "encoder_cache_hit_ratio",
    "Share of the media of a request that the endpoint picked is believed to hold, 0..1.",
    bounds=(0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
)


class MMEmbeddingsCacheParameters(Parameters, frozen=True):
    """Size of encoder caches."""

    cache_size_in_mb_per_server: CountOrDefault = msgspec.field(default=4096, name="cacheSizeInMBPerServer")
    """Encoder cache of each endpoint in MB; one item counts 2 MB."""


class _Item(msgspec.Struct, frozen=True, gc=False):
    kind: str
    chain: "array[int]"
    """A chain of one block for the index: the hash of the item."""


class MMEmbeddingsCacheProducer(
    Producer[MMEmbeddingsCacheParameters],
    PreRequest[MMEmbeddingsCacheParameters],
    EndpointObserver[MMEmbeddingsCacheParameters],
):
    """Publishes, for each slot, how many of the request's media were sent there and are not yet evicted.

    Media are images, audio clips and videos; those of equal URL, data or hash are the same. The primary target of a
    request is believed to hold all of them afterwards. The `cacheSizeInMBPerServer / 2` most recently used items of
    each endpoint are remembered. The first 256 items of a request count, or 2,048 with hashes from vLLM's tokenizer.
    """

    plugin_type = "mm-embeddings-cache-producer"
    metrics = (_QUERIES, _HITS, _HIT_RATIO)

    def setup(self) -> None:
        self._limit = max(1, self.parameters.cache_size_in_mb_per_server // _MB_PER_ITEM)
        self._match_key = MEDIA_MATCH.produced_by(self.name)
        self._items_key: DataKey[Sequence[_Item]] = DataKey("media-items", self.plugin_type, self.name)
        self._added_key: DataKey[Sequence[_Item]] = DataKey("media-items-added", self.plugin_type, self.name)
        self._index = PrefixIndex()
        self._secret = int.from_bytes(token_bytes(8))  # prevents clients from making hashes collide
        self._queries: Counter[str] = Counter()
        self._hits: dict[int, tuple[str, Counter[str]]] = {}
        """By slot: name of the endpoint, and hits by modality."""
        self._ratios = Distribution(_HIT_RATIO.bounds)
        self.writes = (self._match_key,)

    @property
    def samples(self) -> Sequence[Sample]:
        hits = [
            Sample(_HITS, count, (name, kind))
            for name, by_kind in list(self._hits.values())
            for kind, count in list(by_kind.items())
        ]
        queries = [Sample(_QUERIES, count, (kind,)) for kind, count in list(self._queries.items())]
        return (*queries, *hits, Sample(_HIT_RATIO, self._ratios))

    def dump_state(self, snapshot: Snapshot) -> object | None:
        items = np.array([self._index.entries(slot) for slot in range(snapshot.capacity)], dtype=np.int64)
        return {"distinctItems": len(self._index), **endpoint_state(snapshot, {"items": items})}

    def produce(self, request: Request, candidates: Candidates) -> None:
        items = request.get(self._items_key)
        if items is None:
            items = self._items(request)
            request.put(self._items_key, items)
        matched = np.zeros(candidates.snapshot.capacity, dtype=np.int32)
        for item in items:
            matched += self._index.match(item.chain, len(matched))
        request.put(self._match_key, MediaMatch(matched, len(items)))

    def pre_request(self, request: Request, result: SchedulingResult) -> None:
        items = request.get(self._items_key)
        if not items:
            return
        slot = result.primary.slot
        added = [item for item in items if not self._index.match(item.chain, slot + 1).item(slot)]
        for item in items:
            self._index.record(slot, item.chain, self._limit)
        request.put(self._added_key, added)
        kinds = Counter(item.kind for item in items)
        self._queries += kinds
        _, hits = self._hits.setdefault(slot, (result.targets[0].name, Counter()))
        hits += kinds - Counter(item.kind for item in added)
        self._ratios.observe(1.0 - len(added) / len(items))

    def request_failed(self, request: Request, result: SchedulingResult) -> None:
        for item in request.get(self._added_key) or ():
            self._index.withdraw(result.primary.slot, item.chain)

    def slots_removed(self, slots: Sequence[int]) -> None:
        self._index.forget(*slots)
        for slot in slots:
            self._hits.pop(slot, None)

    def _items(self, request: Request) -> Sequence[_Item]:
        """Return the different media of the request."""
        kinds = {digest: kind for kind, digest in request.body.media_hashes}
        return [
            _Item(kind, array("Q", (xxhash.xxh3_64_intdigest(digest, self._secret),))) for digest, kind in kinds.items()
        ]
