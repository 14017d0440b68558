# SPDX-License-Identifier: Apache-2.0
"""The trace of a request, as the wire and the director see it; what makes traces is in `epp.telemetry.tracing`."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from epp.framework.errors import RequestError
from epp.framework.request import DataKey, Headers
from epp.routing.director.routing import Cause, Routing


class RequestTrace(ABC):
    """The part of a trace that this picker has, from the headers of a request to the end of its response."""

    __slots__ = ()

    @property
    @abstractmethod
    def headers(self) -> Mapping[str, str]:
        """Request headers that tell the endpoint of the trace."""

    @property
    @abstractmethod
    def ids(self) -> Mapping[str, str]:
        """The ids of trace and span in hexadecimal, for log lines."""

    @abstractmethod
    def complete(self) -> None:
        """Record that the request is complete, and is routed from now on."""

    @abstractmethod
    def refused(self, error: RequestError) -> None:
        """Record how the request is refused; only the first call counts."""

    @abstractmethod
    def ended(self, routing: Routing | None, cause: Cause) -> None:
        """Record the end of the exchange; only the first call counts."""


class RequestTracer(ABC):
    """Starts traces, or continues a client's or gateway's trace."""

    __slots__ = ()

    @property
    @abstractmethod
    def fields(self) -> frozenset[str]:
        """Names of headers, in lower case, that tell of traces."""

    @abstractmethod
    def begin(self, headers: Headers, metadata: Mapping[str, str]) -> RequestTrace:
        """Return the trace of a request with these headers, for which the gateway called with this metadata."""


TRACE: DataKey[RequestTrace] = DataKey("trace")
"""Of a request, where requests are traced."""
