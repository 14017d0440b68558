# SPDX-License-Identifier: Apache-2.0
"""The rows of the table and their targets."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One row; the target is a maximum, in the unit of the row."""

    id: str
    title: str
    unit: str
    reference: float | None = None
    """Figure of the Go picker on the machine on which the targets were set."""
    share: float | None = None
    """Target as a share of the Go picker's figure."""
    most: float | None = None
    """Absolute target, if there is no share."""

    @property
    def target(self) -> float | None:
        if self.reference is not None and self.share is not None:
            return self.reference * self.share
        return self.most


def _sizes(sizes: Iterable[int], id_start: str, title: str, unit: str, most: Mapping[int, float]) -> tuple[Row, ...]:
    return tuple(Row(f"{id_start}-{size}", title.format(size), unit, most=most.get(size)) for size in sizes)


_FEW = "`--body-mode buffered`"
_QUEUED = "100,000 requests wait in 10,000 flows"
_POOLS = (8, 100, 1000, 10_000)

GROUPS: dict[str, tuple[Row, ...]] = {
    "wire": (
        Row("request-16", "400 B prompt, full duplex, 16 connections", "us", reference=187, share=0.8),
        Row("request-64", "400 B prompt, full duplex, 64 connections", "us", reference=177, share=0.8),
        Row("request-320", "400 B prompt, full duplex, 320 requests/s", "us", reference=273, share=0.8),
        Row("piece", "response piece of an SSE stream", "us", reference=15.6, share=0.5),
        Row("prompt-64k", "64 KB prompt", "us", reference=1437, share=0.25),
        Row("prompt-1m", "1 MB prompt", "us", reference=14_700, share=0.1),
        Row("few-16", f"400 B prompt, 16 connections, {_FEW}", "us"),
        Row("few-stream", f"SSE stream of 300 pieces, {_FEW}: each piece", "us"),
        Row("logged-16", "400 B prompt, full duplex, 16 connections, a log line for each (-v 2)", "us"),
    ),
    "idle": (
        Row("idle-8", "idle, 8 servers with a 51 KB metrics page at 20 Hz", "cores", reference=0.26, share=0.03),
        Row("idle-100", "idle, 100 such servers", "cores", reference=1.9, share=0.03),
        Row("idle-1000", "idle, 1,000 such servers", "cores", reference=1.9, share=0.2),
        Row("idle-5000", "idle, 5,000 such servers, and 5,000 that refuse connections", "cores"),
        Row("memory-8", "memory, 8 servers", "MiB", reference=80, share=0.9),
        Row("memory-100", "memory, 100 servers", "MiB"),
        Row("memory-1000", "memory, 1,000 servers", "MiB", reference=371, share=0.3),
        Row("memory-5000", "memory, 5,000 servers, and 5,000 that refuse connections", "MiB"),
        Row("scrape", "poll of a 51 KB metrics page whose gauges move, all in", "us", most=40),
    ),
    "streams": (Row("stream", "memory of an open stream with a body of 3 KiB", "KiB"),),
    "latency": (
        Row("added-p50-100-8", "added latency at 100 requests/s, median", "ms"),
        Row("added-p99-100-8", "added latency at 100 requests/s, p99", "ms"),
        Row("added-p50-320-8", "added latency at 320 requests/s, median", "ms"),
        Row("added-p99-320-8", "added latency at 320 requests/s, p99", "ms"),
        Row("added-p50-1000-8", "added latency at 1,000 requests/s, median", "ms"),
        Row("added-p99-1000-8", "added latency at 1,000 requests/s, p99", "ms"),
        Row("added-p50-1000-1000", "added latency at 1,000 requests/s, 1,000 servers polled, median", "ms"),
        Row("added-p99-1000-1000", "added latency at 1,000 requests/s, 1,000 servers polled, p99", "ms", most=3),
        Row("failed-1000", "requests that fail at 1,000 requests/s, 1,000 servers polled", "%", most=0),
    ),
    "inner": (
        *_sizes(_POOLS, "schedule", "schedule(), {:,} endpoints", "us", {8: 40, 1000: 100, 10_000: 800}),
        *_sizes(_POOLS, "route", "a routed request without the wire, {:,} endpoints", "us", {}),
        *_sizes((8, 1000), "schedule-adaptive", "schedule() with adaptive.yaml, {:,} endpoints", "us", {}),
        *_sizes((8, 1000), "route-adaptive", "a routed request with adaptive.yaml, {:,} endpoints", "us", {}),
        Row("route-reported-1000", "a routed request without the wire, 1,000 endpoints, after a poll of one", "us"),
        Row("route-220k-1000", "a routed request without the wire, 1,000 endpoints, 220 KB prompt", "us"),
        Row("session", "session of a request without wire and decision, full duplex", "us"),
        Row("session-streamed", "the session, request BUFFERED, response STREAMED", "us"),
        Row("session-piece", "the session, response piece of an SSE stream", "us"),
        Row("session-64k", "the session, 64 KB prompt", "us"),
        Row("session-1m", "the session, 1 MB prompt", "us"),
        Row("turn-messages", "50,000 chat messages, longest hold of the event loop", "ms", most=25),
        Row("turn-parts", "50,000 content parts, longest hold of the event loop", "ms", most=25),
        Row("turn-ids", "1,048,576 token ids, longest hold of the event loop", "ms", most=25),
        Row("turn-headers", "100,000 header fields, longest turn of the event loop", "ms", most=5),
        Row("observers-metrics", "metrics of a request", "us"),
        Row("observers-log", "log line of a request, with its writing", "us"),
        Row("prefix-block", "prefix index, memory of a block, of a million in prompts of 4 KB", "B", most=64),
        Row("kv-match", "KV events, match of 1,000 blocks in two tiers over 100 endpoints", "us", most=200),
        Row("kv-stored-1", "KV events, a block that is stored alone, without decoding", "us"),
        Row("kv-stored-32", "KV events, a block that is stored with 31 others", "us", most=5),
        Row("kv-removed-1", "KV events, a block that is removed alone", "us"),
        Row("kv-removed-32", "KV events, a block that is removed with 31 others", "us", most=5),
        Row("tag", "tag of an endpoint, from labels of its node", "us"),
        Row("filter-bounds", "accelerator filter, bounds, 1,000 endpoints", "us"),
        Row("filter-expression", "accelerator filter, CEL expression, 1,000 endpoints", "us"),
        Row("filter-override", "accelerator filter, bounds and an override in a header, 1,000 endpoints", "us"),
        Row("filter-spill", "cost-aware spill, 1,000 endpoints", "us"),
        Row("flow-enqueue", f"{_QUEUED}, one more comes, with a look at the queues", "us"),
        Row("flow-look", f"{_QUEUED}, a look at the queues while all endpoints are full", "us"),
        Row("flow-dispatch", f"{_QUEUED}, one goes, without its decision", "us"),
        Row("flow-leave", f"{_QUEUED}, the client of one leaves", "us"),
        Row("flow-memory", f"{_QUEUED}, memory of each beside the request itself", "B"),
        Row("flow-reload", f"{_QUEUED}, all move to a new configuration", "ms"),
        Row("quota-none", "quotas of a request, 1,000 endpoints, its tenant has none", "us"),
        Row("quota-requests", "quotas of a request, 1,000 endpoints, limit on requests", "us"),
        Row("quota-everything", "quotas of a request, 1,000 endpoints, all limits", "us"),
        Row("reload", "reload with other plugins, 1,000 endpoints", "ms"),
        Row("reload-turn", "reload with other plugins, 1,000 endpoints, longest turn of the event loop", "ms", most=10),
        Row("change-5000", "one of 5,000 endpoints changes, with the next request", "ms"),
        Row("join-turn-5000", "5,000 endpoints with hardware tags join, longest turn of the event loop", "ms"),
    ),
    "kube": (
        Row("kube-known", "5,000 pods of a Kubernetes API server, time until all are known", "s"),
        Row("kube-change-p50", "5,000 pods, from a change to routing, median", "ms"),
        Row("kube-change-p95", "5,000 pods, from a change to routing, p95", "ms"),
        Row("kube-memory", "5,000 pods, memory", "MiB"),
    ),
}
"""Rows of each group, in the order of the table."""

NEEDS_API_SERVER = frozenset(row.id for row in GROUPS["kube"])
"""Rows that are left out if no Kubernetes API server is built."""
BY_ID = {row.id: row for rows in GROUPS.values() for row in rows}
