# SPDX-License-Identifier: Apache-2.0
"""Requests without room: at the endpoints, in a quota, or anywhere because of their size."""

from collections.abc import Mapping
from types import MappingProxyType

from epp.framework.breach import Breach
from epp.framework.errors.base import SOON_SECONDS, RequestError

CONSTRAINT_CODES: Mapping[int, str] = MappingProxyType(
    {400: "BadRequest", 404: "NotFound", 429: "ResourceExhausted", 503: "ServiceUnavailable"}
)
"""Statuses with which a request is refused whose constraints no endpoint meets, and their codes."""


class UnmetConstraintError(RequestError):
    """Endpoints exist, and none is what the request or its profile asks for: waiting does not help."""

    llm_d_message = "no endpoints available for the given request"
    reason = "rejected-constraint"

    def __init__(self, status: int = 429, *, detail: str = "") -> None:
        super().__init__(
            "no model server here is what this request asks for (hardware, price or labels), and to retry does not "
            "help: ask for less"
        )
        self.status = status
        self.code = CONSTRAINT_CODES[status]
        self.detail = detail


class ResourceExhaustedError(RequestError):
    """Endpoints exist, but have no room."""

    status = 429
    code = "ResourceExhausted"
    kind = "rate_limit_exceeded"


class SaturatedError(ResourceExhaustedError):
    """Endpoints exist, but a profile's filters left none, and did not say why."""

    llm_d_message = "no endpoints available for the given request"
    reason = "rejected-saturated"

    def __init__(
        self,
        message: str = "no model server can take this request now: all are too busy, or none is what it asks for; "
        "retry later, or ask for less",
        *,
        detail: str = "",
    ) -> None:
        super().__init__(message)
        self.detail = detail


class AllBusyError(SaturatedError):
    """Endpoints exist that are what the request asks for, and all of them are too busy."""

    retry_after_seconds = SOON_SECONDS

    def __init__(self, *, detail: str = "") -> None:
        super().__init__("all model servers that can take this request are busy: retry later", detail=detail)


class SheddableDroppedError(SaturatedError):
    """The pool is saturated and the request has a negative priority."""

    llm_d_message = "system saturated, sheddable request dropped"
    retry_after_seconds = SOON_SECONDS

    def __init__(self) -> None:
        super().__init__("all model servers are busy, and this request is of low priority: retry later")


class QueueFullError(SaturatedError):
    """The queue has no room and the pool has endpoints."""

    llm_d_message = ""
    retry_after_seconds = SOON_SECONDS


class QuotaExceededError(ResourceExhaustedError):
    """What the requests of a tenant take together leaves no room for this one; later there may be."""

    reason = "rejected-quota"

    def __init__(self, breach: Breach, retry_after_seconds: int) -> None:
        super().__init__(f"{breach}: retry later")
        self.breach = breach
        self.retry_after_seconds = retry_after_seconds


class QueueTimeoutError(ResourceExhaustedError):
    """The request waited too long and the pool has endpoints."""

    reason = "rejected-ttl-expired"
    retry_after_seconds = SOON_SECONDS

    def __init__(self, detail: str) -> None:
        super().__init__(f"the request timed out in the queue for a model server: {detail}; retry later")
        self.llm_d_message = f"request timed out in queue: {detail}"


class TargetMissedError(ResourceExhaustedError):
    """The request would wait, or has waited, longer than the time to the first token that it wants.

    The reason is that of a request that waited too long: clients treat both alike.
    """

    reason = "rejected-ttl-expired"
    retry_after_seconds = SOON_SECONDS

    def __init__(self, detail: str) -> None:
        super().__init__(
            f"the request cannot have its first token within the time that it asked for: {detail}; retry later, or "
            "allow more time"
        )


class EvictedError(ResourceExhaustedError):
    """The request was under way and had to make room for one of higher priority."""

    retry_after_seconds = SOON_SECONDS

    def __init__(self, reason: str = "evicted") -> None:
        super().__init__("request evicted by flow control")
        self.reason = reason

    @property
    def message(self) -> str:
        """In words that do not depend on llm-d-router."""
        return "the request was ended to make room for one of higher priority: retry later"

    @property
    def sentence(self) -> str:
        """Without the usual prefix, as clients know it."""
        return str(self)
