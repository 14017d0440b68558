# SPDX-License-Identifier: Apache-2.0
"""Warnings about clients, so few that no client can flood the log."""

import structlog

from epp.grpc_http2.limits import Budget, Rate

_log = structlog.get_logger()

_RATE = Rate(20, 0.2)


class Complaints:
    """Shared by the connections of a server."""

    def __init__(self) -> None:
        self._budget = Budget(_RATE, "warnings")
        self._left_out = 0

    def warn(self, event: str, now: float, **fields: object) -> None:
        """Log a warning, or count it for the next one that is logged."""
        if not self._budget.allows(now):
            self._left_out += 1
            return
        if self._left_out:
            fields["warnings_left_out"] = self._left_out
            self._left_out = 0
        _log.warning(event, **fields)
