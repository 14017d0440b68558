"""Prefers the endpoint that served a session last."""

from collections.abc import Mapping

import numpy as np

from epp.framework import (
    Candidates,
    Category,
    Clock,
    Floats,
    Parameters,
    PreRequest,
    Request,
    Response,
    ResponseHeaders,
    SchedulingResult,
    Scorer,
)
from epp.framework.sessions import ENCODED_ENDPOINT_HEADER, EncodedEndpointHeader, SessionAffinity, SessionIds


class SessionAffinityParameters(Parameters, frozen=True):
    """How a request is known to belong to a session, and which profile's choice is preferred."""

    strategy: str = ENCODED_ENDPOINT_HEADER
    """`encoded_endpoint_header`: the client brings back a token that names the endpoint, and nothing is remembered
    here. `session_id`: the client names its session, and this picker remembers the endpoint."""
    encoded_endpoint_header_config: EncodedEndpointHeader = EncodedEndpointHeader()
    """For the strategy `encoded_endpoint_header`."""
    session_id_config: SessionIds = SessionIds()
    """For the strategy `session_id`."""
    profile_name: str = ""
    """Profile whose choice is preferred (`prefill`, say); empty for the one that the gateway gets."""


class SessionAffinityScorer(
    Scorer[SessionAffinityParameters],
    PreRequest[SessionAffinityParameters],
    ResponseHeaders[SessionAffinityParameters],
):
    """1 for the endpoint that served the request's session last, 0 for all others.

    With tokens, the response header is the base64 of `namespace/name` of the endpoint that served: a fallback's, if it
    was one. With session ids, a session belongs to the endpoint chosen last; nothing is added to the response. A token
    that cannot be read counts as none. Beside a filter or another scorer of the same kind, each remembers for itself.
    """

    plugin_type = "session-affinity-scorer"
    category = Category.AFFINITY

    def __init__(
        self, parameters: SessionAffinityParameters | None = None, *, name: str = "", clock: Clock | None = None
    ) -> None:
        super().__init__(parameters, name=name, clock=clock)
        self._affinity = SessionAffinity(
            strategy=self.parameters.strategy,
            token=self.parameters.encoded_endpoint_header_config,
            sessions=self.parameters.session_id_config,
            profile=self.parameters.profile_name,
            owner=self.name,
            clock=self.clock,
        )
        self.reads = self._affinity.reads

    def score(self, request: Request, candidates: Candidates) -> Floats:
        slot = self._affinity.slot(request, candidates)
        return np.zeros(len(candidates)) if slot is None else (candidates.slots == slot).astype(np.float64)

    def pre_request(self, request: Request, result: SchedulingResult) -> None:
        self._affinity.chosen(request, result)

    def response_headers(self, request: Request, response: Response) -> Mapping[str, str]:
        return self._affinity.response_headers(request, response)
