# SPDX-License-Identifier: Apache-2.0
"""JSON and SSE bodies as bytes: a few values are read and changed in place, however the body is cut."""

from epp.bodies.model_member import ModelRestorer, model_spans, with_model, with_model_added, with_model_at
from epp.bodies.partial import completed
from epp.bodies.usage import UsageReader

__all__ = [
    "ModelRestorer",
    "UsageReader",
    "completed",
    "model_spans",
    "with_model",
    "with_model_added",
    "with_model_at",
]
