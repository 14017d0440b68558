"""Keeps the endpoint that served a session last."""

from collections.abc import Mapping

import numpy as np

from epp.framework import (
    Candidates,
    Filter,
    FilterParameters,
    Mask,
    PreRequest,
    Request,
    Response,
    ResponseHeaders,
    SchedulingResult,
)
from epp.framework.sessions import ENCODED_ENDPOINT_HEADER, EncodedEndpointHeader, SessionAffinity, SessionIds


class SessionAffinityFilterParameters(FilterParameters, frozen=True):
    """How a request is known to belong to a session, and which profile's choice is kept."""

    strategy: str = ENCODED_ENDPOINT_HEADER
    """`encoded_endpoint_header`: the client brings back a token that names the endpoint, and nothing is remembered
    here. `session_id`: the client names its session, and this picker remembers the endpoint."""
    encoded_endpoint_header_config: EncodedEndpointHeader = EncodedEndpointHeader()
    """For the strategy `encoded_endpoint_header`."""
    session_id_config: SessionIds = SessionIds()
    """For the strategy `session_id`."""
    profile_name: str = ""
    """Profile whose choice is kept (`prefill`, say); empty for the one that the gateway gets."""


class SessionAffinityFilter(
    Filter[SessionAffinityFilterParameters],
    PreRequest[SessionAffinityFilterParameters],
    ResponseHeaders[SessionAffinityFilterParameters],
):
    """Keeps only the endpoint that served the request's session last; all, where it is not among the candidates.

    With tokens, the response header is the base64 of `namespace/name` of the endpoint that served: a fallback's, if it
    was one. With session ids, a session belongs to the endpoint chosen last; nothing is added to the response. A token
    that cannot be read counts as none.
    """

    plugin_type = "session-affinity-filter"
    may_empty = False

    def setup(self) -> None:
        self._affinity = SessionAffinity(
            strategy=self.parameters.strategy,
            token=self.parameters.encoded_endpoint_header_config,
            sessions=self.parameters.session_id_config,
            profile=self.parameters.profile_name,
            owner=self.name,
            clock=self.clock,
        )
        self.reads = self._affinity.reads

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        slot = self._affinity.slot(request, candidates)
        if slot is not None:
            bound: Mask = candidates.slots == slot
            if bound.any():
                return bound
        return np.ones(len(candidates), dtype=np.bool_)

    def pre_request(self, request: Request, result: SchedulingResult) -> None:
        self._affinity.chosen(request, result)

    def response_headers(self, request: Request, response: Response) -> Mapping[str, str]:
        return self._affinity.response_headers(request, response)
