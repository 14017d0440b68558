# SPDX-License-Identifier: Apache-2.0
"""Stalls of the event loop, which all requests share: when it was held up, for how long, and by what."""

from epp.observability.stalls.record import StallRecord
from epp.observability.stalls.stall import Stall
from epp.observability.stalls.watchdog import DEFAULT_THRESHOLD_SECONDS, StallWatchdog

__all__ = ["DEFAULT_THRESHOLD_SECONDS", "Stall", "StallRecord", "StallWatchdog"]
