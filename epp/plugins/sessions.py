# SPDX-License-Identifier: Apache-2.0
"""Sessions: session ids, agent identities, and the filter that keeps the endpoint of a session."""

from typing import Any

import numpy as np

from epp.framework import (
    AGENT_IDENTITY,
    SESSION_ID,
    Candidates,
    Filter,
    Headers,
    Mask,
    Name,
    Parameters,
    Producer,
    Request,
    RequestHeaders,
    headers,
)
from epp.framework.plugin import Stability
from epp.framework.sessions import SessionAffinity, SessionAffinityParameters


class SessionIdParameters(Parameters, frozen=True):
    """Source of the session id: a header or a cookie."""

    header_name: str = ""
    """Name of the request header; `x-session-id` if neither is given."""
    cookie_name: str = ""
    """Name of the cookie, case-sensitive."""

    def __post_init__(self) -> None:
        if self.header_name and self.cookie_name:
            raise ValueError(
                f"headerName is {self.header_name!r} and cookieName is {self.cookie_name!r}; leave one of them out"
            )


class SessionIdProducer(Producer[SessionIdParameters]):
    """Publishes the value of a header or cookie, unless it is empty, as the request's session id."""

    plugin_type = "session-id-producer"

    def setup(self) -> None:
        self._key = SESSION_ID.produced_by(self.name)
        self._header = (self.parameters.header_name or headers.SESSION_ID).lower()
        self.writes = (self._key,)

    def produce(self, request: Request, candidates: Candidates) -> None:
        wanted = self.parameters.cookie_name
        session = cookie(request.headers, wanted) if wanted else request.headers.get(self._header)
        if session:
            request.put(self._key, session)


def cookie(fields: Headers, name: str) -> str:
    """Return the first non-empty value of a cookie, without quotes; empty if there is none.

    Cookies may come in several fields; malformed ones are skipped.
    """
    for field, value in fields.fields():
        if field == "cookie":
            for pair in value.split(";"):
                found, _, content = pair.partition("=")
                if found.strip() == name and (unquoted := content.strip().strip('"')):
                    return unquoted
    return ""


class AgentIdentityParameters(Parameters, frozen=True):
    """Further headers that identify an agent."""

    additional_session_headers: tuple[Name, ...] = ()
    """Headers of other agents; tried in this order, before the known ones."""


class AgentIdentity(RequestHeaders[AgentIdentityParameters]):
    """Publishes the first of these headers that is not empty, as the request's agent identity.

    In this order: `additionalSessionHeaders`, `x-claude-code-session-id`, `x-session-affinity`, `session-id`,
    `session_id`. It is also the fairness id of a request without a fairness header.
    """

    plugin_type = "agent-identity"
    writes = (AGENT_IDENTITY,)

    def setup(self) -> None:
        self._headers = (*map(str.lower, self.parameters.additional_session_headers), *headers.AGENT_SESSIONS)

    def request_headers(self, request: Request) -> None:
        for name in self._headers:
            identity = request.headers.get(name)
            if identity:
                request.put(AGENT_IDENTITY, identity)
                return


class SessionAffinityFilterParameters(SessionAffinityParameters, frozen=True):
    """Recognition of sessions."""

    fallback_on_empty: bool = False
    """Without effect: this filter always keeps an endpoint."""


class SessionAffinityFilter(SessionAffinity[SessionAffinityFilterParameters], Filter[Any]):
    """Keeps the endpoint that served the request's session last, or all endpoints if it is not a candidate.

    With tokens, the response header is the base64 of `namespace/name` of the endpoint that served the request, which
    may be a fallback. With session ids, a session belongs to the endpoint chosen last, and the response gets no header.
    A malformed token is ignored.
    """

    plugin_type = "session-affinity-filter"
    may_empty = False
    drop_means = "did not serve this session last"

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        bound = self.bound(request, candidates)
        return bound if bound.any() else np.ones(len(candidates), dtype=np.bool_)


class MultiClusterSessionAffinityFilter(SessionAffinityFilter):
    """Keeps the cluster that served the request's session last, as `session-affinity-filter` does for endpoints."""

    plugin_type = "multicluster-session-affinity-filter"
    stability = Stability.ALPHA
