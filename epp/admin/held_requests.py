# SPDX-License-Identifier: Apache-2.0
"""The requests that endpoints and tenants hold, of one process or of several."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, TypeAlias

from epp.framework.messages import printable
from epp.routing.director import Director

Counts: TypeAlias = Mapping[str, Counter[str]]
"""Number of requests by endpoint and tenant."""

_MOST_HELD = 10_000
"""Requests of a process that are looked through."""
_MOST_NAME = 128


class HeldRequests(NamedTuple):
    """Requests by endpoint and tenant."""

    assumed: Counts
    """Those that no endpoint has answered yet."""
    by_tenant: Counts
    """Those that are charged to the quotas of tenants."""
    unanswered: int
    """All without an answer: more than `assumed` has if there are very many."""
    silent: int = 0
    """Processes that did not answer in time: their requests are missing."""

    def with_others(self, others: Sequence["HeldRequests | None"]) -> "HeldRequests":
        """Return these and those of other processes, None for one that did not answer."""
        parts = (self, *(each for each in others if each is not None))
        return HeldRequests(
            _added(each.assumed for each in parts),
            _added(each.by_tenant for each in parts),
            sum(each.unanswered for each in parts),
            1 + len(others) - len(parts),
        )


def held_requests(director: Director) -> HeldRequests:
    """Return the requests of this process."""
    assumed = islice(director.reservations, _MOST_HELD)
    charged = islice(director.quotas.reservations(), _MOST_HELD)
    return HeldRequests(
        _counted((routing.result.targets[0].id, routing.request.fairness_id) for routing in assumed),
        _counted((place.endpoint, each.tenant) for each in charged for place in each.places),
        len(director.reservations),
    )


def _counted(pairs: Iterable[tuple[str, str]]) -> Counts:
    found: dict[str, Counter[str]] = {}
    for endpoint, tenant in pairs:
        found.setdefault(endpoint, Counter())[printable(tenant, _MOST_NAME)] += 1
    return found


def _added(parts: Iterable[Counts]) -> Counts:
    found: dict[str, Counter[str]] = {}
    for endpoint, counts in (pair for part in parts for pair in part.items()):
        found.setdefault(endpoint, Counter()).update(counts)
    return found
