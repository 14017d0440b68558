# SPDX-License-Identifier: Apache-2.0
"""Everything that a plugin needs, in one import; no gRPC, no HTTP, no Kubernetes."""

from epp.framework import errors, headers
from epp.framework import limits as _limits
from epp.framework import roles as _roles
from epp.framework.accelerators.arrays import PLACEMENT, tag_mask, tag_numbers
from epp.framework.accelerators.selection import ACCELERATOR_SELECTION
from epp.framework.accelerators.tag import AcceleratorTag
from epp.framework.arrays import Floats, Mask, Positions
from epp.framework.candidates import Candidates
from epp.framework.clock import Clock, ManualClock, SystemClock
from epp.framework.endpoint import Endpoint
from epp.framework.errors import ConfigurationError, RequestError
from epp.framework.limits import *  # noqa: F403  the types of parameters
from epp.framework.load import LOAD_INPUTS, comparable_load, expected_load, fill_unknown
from epp.framework.plugin import Datum, Parameters, Plugin, Stability
from epp.framework.quotas import TENANT, Tenant
from epp.framework.rates import ENDPOINT_RATES
from epp.framework.records import Records
from epp.framework.request import (
    AGENT_IDENTITY,
    IN_FLIGHT_COST,
    PREFIX_MATCH,
    PROMPT_TOKENS,
    SESSION_ID,
    DataKey,
    Headers,
    Media,
    PrefixMatch,
    PromptTokens,
    Request,
    RequestBody,
    Response,
    Usage,
)
from epp.framework.result import Destination, DropCause, ProfileResult, SchedulingResult
from epp.framework.roles import *  # noqa: F403  a new role is exported by its own module
from epp.framework.scoring import lower_is_better
from epp.framework.snapshot import (
    ACCELERATOR,
    AVOIDED,
    FAILED,
    GPU_UTILIZATION,
    IN_FLIGHT,
    IN_FLIGHT_TOKENS,
    INHERITED,
    KV_BLOCK_TOKENS,
    KV_BLOCKS,
    KV_USAGE,
    LAST_PICKED,
    LORA,
    METRICS_AT,
    MODELS,
    NODE_LABELS,
    PREFIX_HIT_TOKENS,
    PREFIX_QUERY_TOKENS,
    REACHABLE,
    RUNNING,
    SERVED,
    TOPOLOGY,
    WAITING,
    Attribute,
    Column,
    LoraState,
    Snapshot,
    Topology,
)

__all__ = [
    "ACCELERATOR",
    "ACCELERATOR_SELECTION",
    "AGENT_IDENTITY",
    "AVOIDED",
    "ENDPOINT_RATES",
    "FAILED",
    "GPU_UTILIZATION",
    "INHERITED",
    "IN_FLIGHT",
    "IN_FLIGHT_COST",
    "IN_FLIGHT_TOKENS",
    "KV_BLOCKS",
    "KV_BLOCK_TOKENS",
    "KV_USAGE",
    "LAST_PICKED",
    "LOAD_INPUTS",
    "LORA",
    "METRICS_AT",
    "MODELS",
    "NODE_LABELS",
    "PLACEMENT",
    "PREFIX_HIT_TOKENS",
    "PREFIX_MATCH",
    "PREFIX_QUERY_TOKENS",
    "PROMPT_TOKENS",
    "REACHABLE",
    "RUNNING",
    "SERVED",
    "SESSION_ID",
    "TENANT",
    "TOPOLOGY",
    "WAITING",
    "AcceleratorTag",
    "Attribute",
    "Candidates",
    "Clock",
    "Column",
    "ConfigurationError",
    "DataKey",
    "Datum",
    "Destination",
    "DropCause",
    "Endpoint",
    "Floats",
    "Headers",
    "LoraState",
    "ManualClock",
    "Mask",
    "Media",
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
    "Tenant",
    "Topology",
    "Usage",
    "comparable_load",
    "errors",
    "expected_load",
    "fill_unknown",
    "headers",
    "lower_is_better",
    "tag_mask",
    "tag_numbers",
]
__all__ += _limits.__all__
__all__ += _roles.__all__
