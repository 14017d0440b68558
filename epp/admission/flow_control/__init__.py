# SPDX-License-Identifier: Apache-2.0
"""Flow control: queues requests while endpoints have no room, and dispatches them when there is room."""

from epp.admission.flow_control.control import FlowControl, FlowObserver
from epp.admission.flow_control.eviction import (
    OWN_GRACE_SECONDS,
    REPORT_GRACE_SECONDS,
    EvictionObserver,
    Evictions,
    EvictionSettings,
)
from epp.admission.flow_control.guarded import GuardedDetector, guarded
from epp.admission.flow_control.settings import (
    AT_ONCE,
    NO_LIMITS,
    QUEUEING_OUTCOME,
    WAITING,
    BandSettings,
    FlowControlSettings,
    Limits,
    Outcome,
    QueuedRequest,
    QueueingOutcome,
)

__all__ = [
    "AT_ONCE",
    "NO_LIMITS",
    "OWN_GRACE_SECONDS",
    "QUEUEING_OUTCOME",
    "REPORT_GRACE_SECONDS",
    "WAITING",
    "BandSettings",
    "EvictionObserver",
    "EvictionSettings",
    "Evictions",
    "FlowControl",
    "FlowControlSettings",
    "FlowObserver",
    "GuardedDetector",
    "Limits",
    "Outcome",
    "QueuedRequest",
    "QueueingOutcome",
    "guarded",
]
