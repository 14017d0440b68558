# SPDX-License-Identifier: Apache-2.0
"""Accuracy of predicted prefix matches, measured by the cached tokens that engines report; metrics of the index."""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from epp.framework import Count, Parameters, Share
from epp.framework.plugin_status import Legacy, PluginMetric, Sample
from epp.pool.kv_events.index import BlockIndex

_BLOCKS = PluginMetric("kv_cache_index_blocks", "Distinct blocks that the index holds.")
LOOKUPS, HITS, LONGEST_HITS, _ADMISSIONS, _EVICTIONS = (
    PluginMetric(f"kv_cache_index_{name}", text, is_counter=True, legacy=Legacy(f"kvcache_index_{name}_total"))
    for name, text in (
        ("lookup_requests", "Requests looked up in the index."),
        ("lookup_hits", "Longest match of each lookup, in blocks, summed up."),
        ("max_pod_hit_count", "The same as lookup_hits."),
        ("admissions", "Blocks added to the index."),
        ("evictions", "Blocks evicted from the full index."),
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
WITHOUT_TOKENS = PluginMetric(
    "prefix_requests_without_tokens", "Requests that were not looked up: no token ids.", is_counter=True
)


def index_samples(index: BlockIndex) -> Iterator[Sample]:
    """Yield the metrics of an index; may be called in any thread."""
    yield Sample(_BLOCKS, len(index))
    yield Sample(_ADMISSIONS, index.blocks.admitted)
    yield Sample(_EVICTIONS, index.blocks.evicted)
    yield Sample(_SUPPRESSED, index.removed_copies)
    yield Sample(_FORWARDED, index.removed_hashes)
    for labels, number in tuple(index.skipped_stores.items()):
        yield Sample(_SKIPPED_STORES, number, labels)
    for labels, number in tuple(index.skipped_removals.items()):
        yield Sample(_SKIPPED_REMOVALS, number, labels)


_MOST_PATHS = 16

_TOKENS = PluginMetric(
    "prefix_check_tokens",
    "Cached prompt tokens of responses that were checked: predicted at the pick, and reported by the engine.",
    ("source",),
    is_counter=True,
)
_CHECKED = PluginMetric(
    "prefix_check_responses", "Responses whose prediction was checked, by result.", ("result",), is_counter=True
)
_WRONG_SHARE = PluginMetric(
    "prefix_check_wrong_share", "Share of wrong predictions among the latest ones of all endpoints, 0..1."
)
_DISTRUSTED = PluginMetric("prefix_check_distrusted_endpoints", "Endpoints whose predictions are not used.")
_UNCERTAIN = PluginMetric(
    "prefix_check_uncertain_endpoints", "Endpoints whose blocks are used until a response contradicts them."
)
METRICS = (_TOKENS, _CHECKED, _WRONG_SHARE, _DISTRUSTED, _UNCERTAIN)


class PredictionCheck(Parameters, frozen=True):
    """Comparison of predicted matches with the `cached_tokens` of responses."""

    tolerated_share: Share = 0.1
    """Largest difference of a right prediction, as a share of the prompt's tokens; two blocks are always tolerated."""
    window: Count = 50
    """Number of the latest checked responses of an endpoint that count."""
    min_responses: Count = 20
    """Least number of checked responses of an endpoint before its predictions can be distrusted. After a gap in its
    events, its blocks are certain again after this number of right predictions in a row."""
    wrong_share: Share = 0.5
    """Share of wrong predictions above which the predictions for an endpoint are not used; 1 to always use them."""
    recovered_share: Share = 0.2
    """Share of wrong predictions below which they are used again."""
    prefix_match_info_producer_name: str = ""
    """Name of the producer instance whose matches replace those of such an endpoint, if configured; empty for the
    default instance. Without it, the cache of the endpoint counts as empty."""

    def __post_init__(self) -> None:
        if self.min_responses > self.window:
            raise ValueError(f"minResponses is {self.min_responses}; it must be at most window, {self.window}")
        if self.recovered_share > self.wrong_share:
            raise ValueError(
                f"recoveredShare is {self.recovered_share:g}; it must be at most wrongShare, {self.wrong_share:g}"
            )


class _Record(NamedTuple):
    wrong: deque[bool]
    paths: set[str]
    """Paths of requests whose responses reported cached tokens."""


class Accuracy:
    """Wrong and right predictions by endpoint, under any number that identifies it."""

    def __init__(self, parameters: PredictionCheck, block_tokens: int) -> None:
        self._given = parameters
        self._block_tokens = block_tokens
        self._records: dict[int, _Record] = {}
        self.distrusted: set[int] = set()
        """Endpoints whose predictions are wrong too often."""
        self._uncertain: dict[int, int] = {}
        """Number of right predictions after which the blocks of an endpoint are certain again."""
        self._predicted = self._reported = self._right = self._wrong = 0

    def forget(self, endpoint: int) -> None:
        self._records.pop(endpoint, None)
        self.distrusted.discard(endpoint)
        self._uncertain.pop(endpoint, None)

    def doubt(self, endpoint: int) -> bool:
        """Make the blocks of an endpoint uncertain; return whether its responses can show that they are wrong.

        They can if its last checked response agreed with the prediction.
        """
        record = self._records.get(endpoint)
        if record is None or endpoint in self.distrusted or not record.wrong or record.wrong[-1]:
            return False
        self._uncertain[endpoint] = self._given.min_responses
        return True

    def check(self, endpoint: int, path: str, predicted: int, reported: int | None, prompt_tokens: int) -> bool:
        """Compare the cached tokens of a response; `reported` is None if the response has no `cached_tokens`.

        Return whether uncertain blocks of the endpoint are now known to be wrong: fewer were cached than predicted.

        vLLM omits `cached_tokens` if it is 0: a response without it counts as 0 if another response of the endpoint, to
        the same path, had it; otherwise it is ignored.
        """
        record = self._records.get(endpoint)
        if record is None:
            if reported is None:
                return False
            record = self._records[endpoint] = _Record(deque(maxlen=self._given.window), set())
        if reported is None:
            if path not in record.paths:
                return False
            reported = 0
        elif len(record.paths) < _MOST_PATHS:
            record.paths.add(path)
        tolerated = max(2 * self._block_tokens, self._given.tolerated_share * prompt_tokens)
        if max(predicted, reported) <= tolerated:
            return False  # a short match is always right
        wrong = abs(predicted - reported) > tolerated
        record.wrong.append(wrong)
        self._predicted += predicted
        self._reported += reported
        self._wrong += wrong
        self._right += not wrong
        share = sum(record.wrong) / len(record.wrong)
        if share > self._given.wrong_share and len(record.wrong) >= self._given.min_responses:
            self.distrusted.add(endpoint)
        elif share < self._given.recovered_share:
            self.distrusted.discard(endpoint)
        left = self._uncertain.pop(endpoint, 0)
        is_contradicted = bool(left) and wrong and reported < predicted
        if left > 1 and not is_contradicted:
            self._uncertain[endpoint] = left - 1
        return is_contradicted

    @property
    def samples(self) -> Iterator[Sample]:
        """Values of the metrics; may be read in any thread."""
        latest = [wrong for record in list(self._records.values()) for wrong in tuple(record.wrong)]
        yield Sample(_TOKENS, self._predicted, ("predicted",))
        yield Sample(_TOKENS, self._reported, ("reported",))
        yield Sample(_CHECKED, self._right, ("right",))
        yield Sample(_CHECKED, self._wrong, ("wrong",))
        yield Sample(_WRONG_SHARE, sum(latest) / len(latest) if latest else 0.0)
        yield Sample(_DISTRUSTED, len(self.distrusted))
        yield Sample(_UNCERTAIN, len(self._uncertain))
