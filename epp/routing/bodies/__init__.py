# SPDX-License-Identifier: Apache-2.0
"""JSON and SSE bodies as bytes: a few values are read and changed in place, however the body is cut."""

from epp.routing.bodies.model_member import ModelRestorer, completed, with_model, with_model_added, with_priority
from epp.routing.bodies.usage import GrpcUsageReader, UsageReader

__all__ = [
    "GrpcUsageReader",
    "ModelRestorer",
    "UsageReader",
    "completed",
    "with_model",
    "with_model_added",
    "with_priority",
]
