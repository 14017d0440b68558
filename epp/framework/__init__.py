# SPDX-License-Identifier: Apache-2.0
"""Public interface for plugins, in one import; it needs no gRPC, HTTP or Kubernetes."""

from epp.framework import errors, headers, refusals
from epp.framework import limits as _limits
from epp.framework import request as _request
from epp.framework import roles as _roles
from epp.framework import snapshot as _snapshot
from epp.framework.accelerators.arrays import PLACEMENT, tag_mask, tag_numbers
from epp.framework.accelerators.selection import ACCELERATOR_SELECTION, SERVED_CLASS
from epp.framework.accelerators.tag import AcceleratorTag
from epp.framework.arrays import Floats, Mask, Positions
from epp.framework.candidates import Candidates
from epp.framework.clock import Clock, ManualClock, SystemClock
from epp.framework.endpoint import Endpoint
from epp.framework.errors import ConfigurationError, RequestError
from epp.framework.expected_times import ENDPOINT_RATES
from epp.framework.limits import *  # noqa: F403  types of parameters
from epp.framework.load import LOAD_INPUTS, comparable_load, expected_load, fill_unknown
from epp.framework.plugin import Datum, Parameters, Plugin, Stability
from epp.framework.quotas import TENANT, Tenant
from epp.framework.records import Records
from epp.framework.request import *  # noqa: F403  requests and their data
from epp.framework.result import Destination, DropCause, ProfileResult, SchedulingResult
from epp.framework.roles import *  # noqa: F403  a new role is exported by its own module
from epp.framework.scoring import (
    LATENCY_PREDICTION,
    OBSERVED_LATENCY,
    LatencyPrediction,
    ObservedLatency,
    lower_is_better,
)
from epp.framework.snapshot import *  # noqa: F403  columns and attributes

__all__ = [
    "ACCELERATOR_SELECTION",
    "ENDPOINT_RATES",
    "LATENCY_PREDICTION",
    "LOAD_INPUTS",
    "OBSERVED_LATENCY",
    "PLACEMENT",
    "SERVED_CLASS",
    "TENANT",
    "AcceleratorTag",
    "Candidates",
    "Clock",
    "ConfigurationError",
    "Datum",
    "Destination",
    "DropCause",
    "Endpoint",
    "Floats",
    "LatencyPrediction",
    "ManualClock",
    "Mask",
    "ObservedLatency",
    "Parameters",
    "Plugin",
    "Positions",
    "ProfileResult",
    "Records",
    "RequestError",
    "SchedulingResult",
    "Stability",
    "SystemClock",
    "Tenant",
    "comparable_load",
    "errors",
    "expected_load",
    "fill_unknown",
    "headers",
    "lower_is_better",
    "refusals",
    "tag_mask",
    "tag_numbers",
]
__all__ += _limits.__all__
__all__ += _roles.__all__
__all__ += _request.__all__
__all__ += _snapshot.__all__
