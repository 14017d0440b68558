# SPDX-License-Identifier: Apache-2.0
"""Quotas: limits on a single request of a tenant, and on all of its requests together."""

from epp.admission.quotas.peer_use import WhenAlone
from epp.admission.quotas.quotas import NOMINATION_SECONDS, Adjustment, Quotas, QuotaUsage
from epp.admission.quotas.reservation import QuotaObserver, Reservation
from epp.admission.quotas.usage import LimitKey
from epp.framework.quotas import Blocked

__all__ = [
    "NOMINATION_SECONDS",
    "Adjustment",
    "Blocked",
    "LimitKey",
    "QuotaObserver",
    "QuotaUsage",
    "Quotas",
    "Reservation",
    "WhenAlone",
]
