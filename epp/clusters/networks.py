# SPDX-License-Identifier: Apache-2.0
"""Latency and cost of the network to other clusters, from the configuration or from claims of a hub."""

from collections.abc import Mapping
from typing import NamedTuple

from epp.clusters.cluster_status import Hub
from epp.framework.quantities import parse_duration

_MOST_COST = 1e6


class DeclaredNetwork(NamedTuple):
    """Network between the local cluster and another one; None for numbers that are not declared."""

    latency: float | None = None
    """Seconds of a round trip."""
    cost: float | None = None
    """Dollars for a gigabyte."""


def declared_networks(
    hub: Hub, configured: Mapping[str, DeclaredNetwork], claims: tuple[str, str]
) -> tuple[Mapping[str, DeclaredNetwork], tuple[str, ...]]:
    """Return the networks by cluster, and a message for each claim that is no number.

    `claims` are the names of the claims, or labels, with latency and cost; empty for none. Configured numbers replace
    those of claims.
    """
    found, faults = dict(configured), []
    for name, cluster in hub.clusters.items() if any(claims) else ():
        numbers = []
        for claim, read, form in zip(claims, (parse_duration, _cost), ("35ms", "0.02"), strict=True):
            text = cluster.claims.get(claim) or cluster.metadata.labels.get(claim, "")
            try:
                numbers.append(read(text) if claim and text else None)
            except ValueError:
                faults.append(f"ManagedCluster {name}: {claim} is {text!r:.60}: write a number such as {form}")
                numbers.append(None)
        own = found.get(name, DeclaredNetwork())
        merged = DeclaredNetwork(
            *(given if given is not None else each for given, each in zip(own, numbers, strict=True))
        )
        if merged != DeclaredNetwork():
            found[name] = merged
    return found, tuple(faults)


def _cost(text: str) -> float:
    cost = float(text)
    if not 0 <= cost < _MOST_COST:
        raise ValueError("no cost")
    return cost
