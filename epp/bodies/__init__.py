"""JSON and SSE bodies as bytes: the few values that matter are read and changed in place, however a body was cut."""

from epp.bodies.json_edit import with_model, with_model_added
from epp.bodies.model_restore import ModelRestorer
from epp.bodies.partial import completed
from epp.bodies.usage import UsageReader

__all__ = ["ModelRestorer", "UsageReader", "completed", "with_model", "with_model_added"]
