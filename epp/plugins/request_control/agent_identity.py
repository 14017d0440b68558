"""Finds what names the agent behind a request, in the headers that coding agents send."""

from epp.framework import Parameters, Request, RequestHeaders
from epp.framework.headers import AGENT_SESSIONS
from epp.framework.limits import Name
from epp.framework.request import AGENT_IDENTITY


class AgentIdentityParameters(Parameters, frozen=True):
    """Further headers to look at."""

    additional_session_headers: tuple[Name, ...] = ()
    """Headers of other agents, looked at in this order and before the known ones."""


class AgentIdentity(RequestHeaders[AgentIdentityParameters]):
    """Publishes the first of these headers that is not empty, as the request's agent identity.

    In this order: `additionalSessionHeaders`, `x-claude-code-session-id`, `x-session-affinity`, `session-id`,
    `session_id`. It is the request's fairness id too, where no header names one.
    """

    plugin_type = "agent-identity"
    writes = (AGENT_IDENTITY,)

    def setup(self) -> None:
        self._headers = (*map(str.lower, self.parameters.additional_session_headers), *AGENT_SESSIONS)

    def request_headers(self, request: Request) -> None:
        for name in self._headers:
            identity = request.headers.get(name)
            if identity:
                request.put(AGENT_IDENTITY, identity)
                return
