# SPDX-License-Identifier: Apache-2.0
"""Quotas: what the requests of a tenant may take, each by itself and all together."""

from epp.quotas.keys import LimitKey
from epp.quotas.observer import QuotaObserver
from epp.quotas.quotas import NOMINATION_SECONDS, Quotas
from epp.quotas.report import Adjustment, Line
from epp.quotas.reservation import Reservation

__all__ = [
    "NOMINATION_SECONDS",
    "Adjustment",
    "LimitKey",
    "Line",
    "QuotaObserver",
    "Quotas",
    "Reservation",
]
