# SPDX-License-Identifier: Apache-2.0
"""Remarks on a run: idle devices and nodes, requests in other clusters, loaded adapters, cached tokens."""

from perf.bench.profiles.fleets import Fleet
from perf.bench.profiles.outcome import Outcome


def idle_gpus(fleet: Fleet, outcome: Outcome) -> set[str]:
    """Return the divided GPUs without a slice that answered a counted request."""
    used = {server.gpu for server in fleet.servers if server.name in outcome.servers}
    return {server.gpu for server in fleet.servers if server.gpu} - used


def idle_nodes(fleet: Fleet, outcome: Outcome) -> set[str]:
    """Return the nodes on which no server answered a counted request."""
    used = {server.node for server in fleet.servers if server.name in outcome.servers}
    return {server.node for server in fleet.servers if server.node} - used


def share_away(fleet: Fleet, outcome: Outcome) -> float:
    """Return the share of counted requests that another cluster answered."""
    away = {server.name for server in fleet.servers if server.cluster}
    return sum(one.server in away for one in outcome.counted) / len(outcome.counted)


def remarks(fleet: Fleet, outcome: Outcome) -> str:
    """Return human-readable remarks on the fleet; empty for most."""
    found = []
    if any(server.gpu for server in fleet.servers):
        found.append(f"idle: {len(idle_gpus(fleet, outcome))} GPUs, {len(idle_nodes(fleet, outcome))} nodes")
    if any(server.cluster for server in fleet.servers):
        found.append(f"{share_away(fleet, outcome):.0%} in another cluster")
    if outcome.adapter_loads:
        found.append(f"{outcome.adapter_loads} adapters loaded")
    if any(one.cached_tokens for one in outcome.counted):
        found.append(f"{outcome.cached_share:.0%} of prompts cached")
    if refused := sum(one.refused for one in outcome.counted):
        found.append(f"{refused} refused")
    return "; ".join(found)
