# SPDX-License-Identifier: Apache-2.0
"""Flow control: requests wait in queues in front of full endpoints, and are released when there is room."""

from epp.admission.flow_control.band import Waiting
from epp.admission.flow_control.control import FlowControl, FlowObserver
from epp.admission.flow_control.entrant import Entrant
from epp.admission.flow_control.eviction import (
    OWN_GRACE_SECONDS,
    REPORT_GRACE_SECONDS,
    EvictionObserver,
    Evictions,
    EvictionSettings,
)
from epp.admission.flow_control.guarded import GuardedDetector, guarded
from epp.admission.flow_control.outcomes import AT_ONCE, QUEUEING_OUTCOME, WAITING, Outcome, QueueingOutcome
from epp.admission.flow_control.settings import NO_LIMITS, BandSettings, FlowControlSettings, Limits

__all__ = [
    "AT_ONCE",
    "NO_LIMITS",
    "OWN_GRACE_SECONDS",
    "QUEUEING_OUTCOME",
    "REPORT_GRACE_SECONDS",
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
    "QueueingOutcome",
    "Waiting",
    "guarded",
]
