# SPDX-License-Identifier: Apache-2.0
"""Warnings about clients, so few that no client can flood the log, or keep those about others out of it."""

from dataclasses import dataclass, field

import structlog

from epp.extproc.http2.limits import Budget, Rate

_log = structlog.get_logger()

_OF_ONE = Rate(20, 0.2)
_OF_ALL = Rate(200, 2)
_MOST_HOSTS = 256


@dataclass(slots=True)
class _OfHost:
    budget: Budget = field(default_factory=lambda: Budget(_OF_ONE, "warnings"))
    left_out: int = 0


class RateLimitedLog:
    """Shared by the connections of a server; each host has a budget of its own."""

    def __init__(self) -> None:
        self._all = Budget(_OF_ALL, "warnings")
        self._hosts: dict[str, _OfHost] = {}  # the one of the last warning last
        self._forgotten = 0

    def warn(self, event: str, now: float, *, peer: str = "", **fields: object) -> None:
        """Log a warning about a peer, `host:port`, or count it for the next one about the same host that is logged."""
        host = peer.rpartition(":")[0]
        known = self._hosts.pop(host, None) or _OfHost()
        self._hosts[host] = known
        if len(self._hosts) > _MOST_HOSTS:
            self._forgotten += self._hosts.pop(next(iter(self._hosts))).left_out
        if not known.budget.allows(now) or not self._all.allows(now):
            known.left_out += 1
            return
        if peer:
            fields["peer"] = peer
        if known.left_out:
            fields["warnings_left_out"] = known.left_out
            known.left_out = 0
        if self._forgotten:
            fields["warnings_left_out_elsewhere"] = self._forgotten
            self._forgotten = 0
        _log.warning(event, **fields)
