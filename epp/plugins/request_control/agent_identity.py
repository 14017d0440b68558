"""Finds what names the agent behind a request, in the headers that coding agents send."""

from epp.framework import Clock, Parameters, Request, RequestHeaders
from epp.framework.headers import AGENT_SESSIONS
from epp.framework.request import AGENT_IDENTITY


class AgentIdentityParameters(Parameters, frozen=True):
    """Further headers to look at."""

    additional_session_headers: tuple[str, ...] = ()
    """Headers of other agents, looked at in this order and before the known ones."""

    def __post_init__(self) -> None:
        """Refuse nameless headers."""
        if not all(self.additional_session_headers):
            raise ValueError("additionalSessionHeaders has an empty entry; name a header or remove it")


class AgentIdentity(RequestHeaders[AgentIdentityParameters]):
    """Publishes the first of these headers that is not empty, as the request's agent identity.

    In this order: `additionalSessionHeaders`, `x-claude-code-session-id`, `x-session-affinity`, `session-id`,
    `session_id`. It is the request's fairness id too, where no header names one.
    """

    plugin_type = "agent-identity"
    writes = (AGENT_IDENTITY,)

    def __init__(
        self, parameters: AgentIdentityParameters | None = None, *, name: str = "", clock: Clock | None = None
    ) -> None:
        super().__init__(parameters, name=name, clock=clock)
        self._headers = (*map(str.lower, self.parameters.additional_session_headers), *AGENT_SESSIONS)

    def request_headers(self, request: Request) -> None:
        for name in self._headers:
            identity = request.headers.get(name)
            if identity:
                request.put(AGENT_IDENTITY, identity)
                return
