# SPDX-License-Identifier: Apache-2.0
"""Plugin types of llm-d-router that are known here by name only."""

from collections.abc import Mapping
from types import MappingProxyType

WITHOUT_TASK: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(
        ("disagg-headers-handler", "prefill-header-handler"),
        "the profile handlers set the headers for disaggregated serving themselves",
    )
)
"""Types that a file may declare and that have nothing to do, with the reason."""

NOT_YET: frozenset[str] = frozenset(
    {
        "burst-prefix-cache-producer",
        "endpoint-pin-screener",
        "latency-scorer",
        "latency-slo-admitter",
        "mm-embeddings-cache-producer",
        "mm-embeddings-cache-scorer",
        "models-responder",
        "multicluster-approx-prefix-cache-producer",
        "multicluster-file-discovery",
        "multicluster-kv-cache-utilization-scorer",
        "multicluster-metrics-data-source",
        "multicluster-metrics-extractor",
        "multicluster-prefix-cache-scorer",
        "multicluster-queue-scorer",
        "multicluster-session-affinity-filter",
        "outlen-bucket",
        "p2p-source-producer",
        "precise-prefix-cache-producer",
        "precise-prefix-cache-scorer",
        "predicted-latency-producer",
        "reserve-endpoint",
        "slo-headroom-tier-filter",
        "thunder-agent",
        "vertexai-parser",
        "vllmgrpc-parser",
    }
)
"""Types that are refused until they are built."""
