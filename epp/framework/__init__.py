"""What a plugin author sees: requests, candidates, roles and helpers; no gRPC, no HTTP, no Kubernetes."""

from epp.framework.arrays import Floats, Mask, Positions
from epp.framework.candidates import Candidates
from epp.framework.clock import Clock, ManualClock, SystemClock
from epp.framework.endpoint import Endpoint
from epp.framework.errors import ConfigurationError, RequestError
from epp.framework.plugins import (
    Aggregator,
    Category,
    Draw,
    EndpointObserver,
    Filter,
    Parameters,
    Parser,
    Picker,
    Plugin,
    PreRequest,
    Producer,
    ProfilePicker,
    Scorer,
)
from epp.framework.request import DataKey, Headers, PrefixMatch, Request, RequestBody
from epp.framework.result import Aggregate, ProfileResult, SchedulingResult
from epp.framework.scoring import lower_is_better
from epp.framework.snapshot import Attribute, Column, LoraState, Records, Snapshot

__all__ = [
    "Aggregate",
    "Aggregator",
    "Attribute",
    "Candidates",
    "Category",
    "Clock",
    "Column",
    "ConfigurationError",
    "DataKey",
    "Draw",
    "Endpoint",
    "EndpointObserver",
    "Filter",
    "Floats",
    "Headers",
    "LoraState",
    "ManualClock",
    "Mask",
    "Parameters",
    "Parser",
    "Picker",
    "Plugin",
    "Positions",
    "PreRequest",
    "PrefixMatch",
    "Producer",
    "ProfilePicker",
    "ProfileResult",
    "Records",
    "Request",
    "RequestBody",
    "RequestError",
    "SchedulingResult",
    "Scorer",
    "Snapshot",
    "SystemClock",
    "lower_is_better",
]
