# SPDX-License-Identifier: Apache-2.0
"""The rows of the campaign by name, in the order in which they run."""

from collections.abc import Awaitable, Callable, Mapping

from perf.hostile import endings, floods, heavy, leaving, limits, mishaps, pages, soak, telling
from perf.hostile.scene import Campaign

ROWS: Mapping[str, Callable[[Campaign], Awaitable[None]]] = {
    "rapid-resets": floods.rapid_resets,
    "renewed-keys": floods.renewed_keys,
    "slow-writers": floods.slow_writers,
    "stalled-requests": floods.stalled_requests,
    "held-bodies": floods.held_bodies,
    "heavy-messages": heavy.heavy_messages,
    "malformed": endings.malformed_streams,
    "random-endings": endings.random_endings,
    "endings-in-queue": endings.endings_in_queue,
    "lost-gateways": endings.lost_gateways,
    "large-page": pages.large_page,
    "adapter-lines": pages.adapter_lines,
    "one-line-page": pages.one_line,
    "half-open-scrapes": pages.half_open_scrapes,
    "leaving-clients": leaving.leaving_clients,
    "leaving-the-queue": leaving.leaving_the_queue,
    "endless-answers": leaving.endless_answers,
    "failing-open": leaving.failing_open,
    "dying-servers": mishaps.dying_servers,
    "dying-with-retries": mishaps.dying_servers_with_retries,
    "reloads": mishaps.reloads,
    "symlink-swaps": mishaps.symlink_swaps,
    "clock-jumps": mishaps.clock_jumps,
    "little-memory": limits.little_memory,
    "few-descriptors": limits.few_descriptors,
    "full-disk": limits.full_disk,
    "steering": telling.steering,
    "prompts-in-logs": telling.prompts_in_logs,
    "soak": soak.soak,
}
IN_CI = tuple(name for name in ROWS if name not in {"one-line-page", "symlink-swaps", "dying-with-retries"})
"""All rows except those similar to another one."""
