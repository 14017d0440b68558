# SPDX-License-Identifier: Apache-2.0
"""Metrics of the state that pickers of a pool share."""

from collections.abc import Iterator

from prometheus_client.registry import CollectorRegistry

from epp.sharing.exchange import COUNTS
from epp.sharing.stream import SharedStream
from epp.telemetry.families import Computed, Row


def show_shared_state(registry: CollectorRegistry, stream: SharedStream) -> None:
    """Add the metrics of the state that pickers of the pool share."""
    texts = {
        "llm_d_epp_shared_state_connected": "1 while the server of the shared state answers and takes writes.",
        "llm_d_epp_shared_state_peers": "Other pickers of the pool that were heard lately.",
        "llm_d_epp_shared_state_age_seconds": "Time that the last batch of another picker took to be applied.",
        "llm_d_epp_shared_state_failures_total": "Failures of the server of the shared state.",
        "llm_d_epp_shared_state_published_batches_total": "Batches that this picker shared.",
        "llm_d_epp_shared_state_published_bytes_total": "Bytes of these.",
        "llm_d_epp_shared_state_applied_batches_total": "Batches of other pickers that were applied.",
        "llm_d_epp_shared_state_applied_bytes_total": "Bytes of these.",
        "llm_d_epp_shared_state_applied_entries_total": "Endpoints, chains, rates and tenants in these.",
        "llm_d_epp_shared_state_lost_batches_total": "Batches of other pickers that never came.",
        "llm_d_epp_shared_state_repeated_batches_total": "Batches that came again or too late, and are not applied.",
        "llm_d_epp_shared_state_refused_total": "Batches or payloads that are invalid.",
        "llm_d_epp_shared_state_trimmed_total": "Times that changes were dropped before this picker could read them.",
    }

    def rows() -> Iterator[Row]:
        exchange = stream.exchange
        counts = [exchange.counts[name] for name in COUNTS]
        yield (), (stream.is_connected, exchange.peers, exchange.last_age, stream.failures, *counts, stream.trimmed)

    Computed(registry, (), texts, rows)
