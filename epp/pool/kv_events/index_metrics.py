# SPDX-License-Identifier: Apache-2.0
"""Metrics of the index of cached blocks."""

from collections.abc import Iterator

from epp.framework.plugin_status import Legacy, PluginMetric, Sample
from epp.pool.kv_events.index import BlockIndex

_BLOCKS = PluginMetric("kv_cache_index_blocks", "Distinct blocks that the index holds.")
LOOKUPS, HITS, LONGEST_HITS, _ADMISSIONS, _EVICTIONS = (
    PluginMetric(f"kv_cache_index_{name}", text, is_counter=True, legacy=Legacy(f"kvcache_index_{name}_total"))
    for name, text in (
        ("lookup_requests", "Requests looked up in the index."),
        ("lookup_hits", "Longest match of each lookup, in blocks, summed up."),
        ("max_pod_hit_count", "The same as lookup_hits."),
        ("admissions", "Blocks that the index took in."),
        ("evictions", "Blocks that the index evicted for lack of room."),
    )
)
_SUPPRESSED, _FORWARDED = (
    PluginMetric(
        f"kv_cache_events_dedup_removed_hashes_{name}",
        text,
        is_counter=True,
        legacy=Legacy(f"kvcache_kvevents_dedup_removed_hashes_{name}_total"),
    )
    for name, text in (
        ("suppressed", "Removed blocks that have another copy in the same cache."),
        ("forwarded", "Other removed blocks."),
    )
)
_SKIPPED_STORES, _SKIPPED_REMOVALS = (
    PluginMetric(f"kv_cache_events_{name}_skipped", text, ("cache_kind", "reason"), is_counter=True)
    for name, text in (
        ("stores", "Events of stored blocks that the index skipped."),
        ("removals", "Events of removed blocks that the index skipped."),
    )
)
INDEX_METRICS = (
    _BLOCKS, _ADMISSIONS, _EVICTIONS, _SUPPRESSED, _FORWARDED, _SKIPPED_STORES, _SKIPPED_REMOVALS,
)  # fmt: skip
LATENCY = PluginMetric(
    "kv_cache_index_lookup_latency_seconds",
    "Duration of lookups.",
    bounds=(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    legacy=Legacy("kvcache_index_lookup_latency_seconds"),
)
UNTOLD = PluginMetric(
    "prefix_requests_without_tokens", "Requests that were not looked up: no token ids.", is_counter=True
)


def index_samples(index: BlockIndex) -> Iterator[Sample]:
    """Yield size and use of an index; read from any thread."""
    yield Sample(_BLOCKS, len(index))
    yield Sample(_ADMISSIONS, index.admitted)
    yield Sample(_EVICTIONS, index.evicted)
    yield Sample(_SUPPRESSED, index.removed_copies)
    yield Sample(_FORWARDED, index.removed_hashes)
    for labels, number in tuple(index.skipped_stores.items()):
        yield Sample(_SKIPPED_STORES, number, labels)
    for labels, number in tuple(index.skipped_removals.items()):
        yield Sample(_SKIPPED_REMOVALS, number, labels)
