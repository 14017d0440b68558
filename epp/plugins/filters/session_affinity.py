"""Keeps the endpoint that served the session last."""

from typing import Any

import numpy as np

from epp.framework import Candidates, Filter, Mask, Request
from epp.framework.sessions import SessionAffinity, SessionAffinityParameters


class SessionAffinityFilterParameters(SessionAffinityParameters, frozen=True):
    """Parameters of session affinity, and that of every filter: a struct cannot derive from two."""

    fallback_on_empty: bool = False
    """Without effect: this filter always keeps an endpoint."""


class SessionAffinityFilter(SessionAffinity[SessionAffinityFilterParameters], Filter[Any]):
    """Keeps only the endpoint that served the request's session last; all, where it is not among the candidates.

    With tokens, the response header is the base64 of `namespace/name` of the endpoint that served: a fallback's, if it
    was one. With session ids, a session belongs to the endpoint chosen last; the response gets no header. A malformed
    token counts as none.
    """

    plugin_type = "session-affinity-filter"
    may_empty = False

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        bound = self.bound(request, candidates)
        return bound if bound.any() else np.ones(len(candidates), dtype=np.bool_)
