# SPDX-License-Identifier: Apache-2.0
"""Quotas: limits on a single request of a tenant, and on all of its requests together."""

from epp.framework.quotas import Blocked
from epp.quotas.allowances import LimitKey
from epp.quotas.quotas import NOMINATION_SECONDS, Quotas
from epp.quotas.report import Adjustment, QuotaUsage
from epp.quotas.reservation import QuotaObserver, Reservation

__all__ = [
    "NOMINATION_SECONDS",
    "Adjustment",
    "Blocked",
    "LimitKey",
    "QuotaObserver",
    "QuotaUsage",
    "Quotas",
    "Reservation",
]
