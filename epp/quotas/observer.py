# SPDX-License-Identifier: Apache-2.0
"""What is told of quotas while requests are served."""

from epp.framework.breach import Breach
from epp.framework.request import Request
from epp.quotas.reservation import Reservation


class QuotaObserver:
    """No-op callbacks; override those of interest."""

    __slots__ = ()

    def charged(self, reservation: Reservation) -> None:
        """Record that a request of a tenant with a quota begins."""

    def released(self, reservation: Reservation) -> None:
        """Record that it has ended; what it has had is in `reservation.spent`."""

    def over_quota(self, request: Request, breach: Breach) -> None:
        """Record a request that is larger than its tenant may send."""

    def alert(self, tenant: str, key: str, used: float, limit: float, *, is_over: bool) -> None:
        """Record that a limit is almost used up, or that this is over."""
