# SPDX-License-Identifier: Apache-2.0
"""JSON and SSE bodies as bytes: a few values are read and changed in place, however the body is cut."""

from epp.routing.bodies.grpc_usage import GrpcUsageReader
from epp.routing.bodies.model_member import ModelRestorer, with_model, with_model_added
from epp.routing.bodies.partial import completed
from epp.routing.bodies.priority_member import with_priority
from epp.routing.bodies.usage import UsageReader

__all__ = [
    "GrpcUsageReader",
    "ModelRestorer",
    "UsageReader",
    "completed",
    "with_model",
    "with_model_added",
    "with_priority",
]
