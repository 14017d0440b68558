# SPDX-License-Identifier: Apache-2.0
"""Settings of a replay, and the times of the network."""

from dataclasses import dataclass

PAGE_SECONDS = 0.002
"""From the writing of a metrics page to the datastore."""
HOP_SECONDS = 0.001
"""From the picker to a server, and back; also from one server to another."""
JITTER_SECONDS = 0.005
"""Longest delay of a request, with seeds other than 0: a few milliseconds can change all later picks."""
TRANSFER_SECONDS_PER_TOKEN = 128 * 1024 / 10e9
"""The KV cache of a model with 8 billion parameters, 128 KiB for each token, over a network of 10 GB/s."""


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """How the requests of a trace are replayed; times are in seconds of virtual time."""

    seed: int = 0
    """Of the random choices of pickers, the phases of polls and the delays of requests."""
    rate_scale: float = 1.0
    """2 sends the requests twice as fast."""
    limit: int | None = None
    """Most requests."""
    duration: float | None = None
    """Requests that arrive later are left out."""
    timeout_seconds: float = 60.0
    """Clients leave that have no first token by then."""
    pickers: int = 1
    """Pickers side by side."""
    share_seconds: float | None = None
    """Time that a batch of shared state takes to the other pickers; None where each sees only its own requests."""
    poll_seconds: float = 0.05
    """Fastest interval of polls."""
    page_seconds: float = 0.0
    """Time for which metrics pages stay as they are, as behind a cache; 0 for pages of the moment."""
    transfer_seconds_per_token: float = TRANSFER_SECONDS_PER_TOKEN
    """Of the KV cache, from a prefill server to a decode server, or to one that copies it."""
    regret_every: int = 4
    """The regret of every fourth routed request is computed, of fewer on more than 16 servers; 0 for none."""
    report_seconds: float = 10.0
    """Interval of reports of progress."""
    objects: tuple[str, ...] = ()
    """Files or directories with objects of the cluster: objectives, rewrites, and inputs of plugins."""
    experimental: bool = False
    """Whether plugins may be alpha."""
    plugin_modules: tuple[str, ...] = ()
    """Modules with further plugins."""
