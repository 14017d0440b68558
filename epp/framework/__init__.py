"""What a plugin author sees: requests, candidates, roles and helpers; no gRPC, no HTTP, no Kubernetes."""

from epp.framework import roles as _roles
from epp.framework.arrays import Floats, Mask, Positions
from epp.framework.candidates import Candidates
from epp.framework.clock import Clock, ManualClock, SystemClock
from epp.framework.endpoint import Endpoint
from epp.framework.errors import ConfigurationError, RequestError
from epp.framework.plugin import Datum, Parameters, Plugin, Stability
from epp.framework.request import DataKey, Headers, PrefixMatch, PromptTokens, Request, RequestBody
from epp.framework.response import Response, Usage
from epp.framework.result import Destination, ProfileResult, SchedulingResult
from epp.framework.roles import *  # noqa: F403  a new role is exported by its own module
from epp.framework.scoring import lower_is_better
from epp.framework.snapshot import Attribute, Column, LoraState, Records, Snapshot, Topology

__all__ = [
    "Attribute",
    "Candidates",
    "Clock",
    "Column",
    "ConfigurationError",
    "DataKey",
    "Datum",
    "Destination",
    "Endpoint",
    "Floats",
    "Headers",
    "LoraState",
    "ManualClock",
    "Mask",
    "Parameters",
    "Plugin",
    "Positions",
    "PrefixMatch",
    "ProfileResult",
    "PromptTokens",
    "Records",
    "Request",
    "RequestBody",
    "RequestError",
    "Response",
    "SchedulingResult",
    "Snapshot",
    "Stability",
    "SystemClock",
    "Topology",
    "Usage",
    "lower_is_better",
]
__all__ += _roles.__all__
