"""What a plugin author sees: requests, candidates, roles and helpers; no gRPC, no HTTP, no Kubernetes."""

from epp.framework.arrays import Floats, Mask, Positions
from epp.framework.candidates import Candidates
from epp.framework.clock import Clock, ManualClock, SystemClock
from epp.framework.endpoint import Endpoint
from epp.framework.errors import ConfigurationError, RequestError
from epp.framework.plugin import Datum, Parameters, Plugin, Stability
from epp.framework.request import DataKey, Headers, PrefixMatch, PromptTokens, Request, RequestBody
from epp.framework.response import Response, Usage
from epp.framework.result import Destination, ProfileResult, SchedulingResult
from epp.framework.roles import (
    Admitter,
    Aggregator,
    Category,
    Decider,
    Draw,
    EndpointObserver,
    Filter,
    FilterParameters,
    Parser,
    Picker,
    PreRequest,
    Producer,
    ProfilePicker,
    RequestHeaders,
    ResponseHeaders,
    ResponseReporter,
    ResponseTiming,
    Scorer,
)
from epp.framework.scoring import lower_is_better
from epp.framework.snapshot import Attribute, Column, LoraState, Records, Snapshot, Topology

__all__ = [
    "Admitter",
    "Aggregator",
    "Attribute",
    "Candidates",
    "Category",
    "Clock",
    "Column",
    "ConfigurationError",
    "DataKey",
    "Datum",
    "Decider",
    "Destination",
    "Draw",
    "Endpoint",
    "EndpointObserver",
    "Filter",
    "FilterParameters",
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
    "PromptTokens",
    "Records",
    "Request",
    "RequestBody",
    "RequestError",
    "RequestHeaders",
    "Response",
    "ResponseHeaders",
    "ResponseReporter",
    "ResponseTiming",
    "SchedulingResult",
    "Scorer",
    "Snapshot",
    "Stability",
    "SystemClock",
    "Topology",
    "Usage",
    "lower_is_better",
]
