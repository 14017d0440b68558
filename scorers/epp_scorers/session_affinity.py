# SPDX-License-Identifier: Apache-2.0
"""Scores the endpoint that served the session last."""

import numpy as np

from epp.framework import Candidates, Category, Floats, Request, Scorer
from epp.framework.sessions import SessionAffinity, SessionAffinityParameters


class SessionAffinityScorer(Scorer[SessionAffinityParameters], SessionAffinity[SessionAffinityParameters]):
    """1 for the endpoint that served the request's session last, 0 for all others.

    With tokens, the response header is the base64 of `namespace/name` of the endpoint that served: a fallback's, if it
    was one. With session ids, a session belongs to the endpoint chosen last; the response gets no header. A malformed
    token counts as none. Each instance of this scorer and of `session-affinity-filter` has its own memory.
    """

    plugin_type = "session-affinity-scorer"
    category = Category.AFFINITY
    zero_means = "did not serve this session last"

    def score(self, request: Request, candidates: Candidates) -> Floats:
        return self.bound(request, candidates).astype(np.float64)
