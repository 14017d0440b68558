# SPDX-License-Identifier: Apache-2.0
"""Flow control: requests wait in queues in front of full endpoints, and are released when there is room."""

from epp.flow_control.band import Waiting
from epp.flow_control.control import FlowControl, FlowObserver
from epp.flow_control.entrant import Entrant
from epp.flow_control.eviction import (
    OWN_GRACE_SECONDS,
    REPORT_GRACE_SECONDS,
    EvictionObserver,
    Evictions,
    EvictionSettings,
)
from epp.flow_control.guarded import GuardedDetector, guarded
from epp.flow_control.outcomes import Outcome
from epp.flow_control.settings import NO_LIMITS, BandSettings, FlowControlSettings, Limits
from epp.flow_control.stay import AT_ONCE, STAY, WAITING, Stay

__all__ = [
    "AT_ONCE",
    "NO_LIMITS",
    "OWN_GRACE_SECONDS",
    "REPORT_GRACE_SECONDS",
    "STAY",
    "WAITING",
    "BandSettings",
    "Entrant",
    "EvictionObserver",
    "EvictionSettings",
    "Evictions",
    "FlowControl",
    "FlowControlSettings",
    "FlowObserver",
    "GuardedDetector",
    "Limits",
    "Outcome",
    "Stay",
    "Waiting",
    "guarded",
]
