"""Keeps the endpoints that a test names in a request header."""

import numpy as np

from epp.framework import Candidates, Filter, Mask, Request
from epp.framework.addresses import Subset
from epp.framework.headers import ENDPOINT_SELECTION


class HeaderBasedTestingFilter(Filter):
    """Keeps the endpoints listed in the header `test-epp-endpoint-selection`, for tests of gateways.

    The header is a comma list of `IP` (all its ports) and `IP:port`; an IPv6 address with a port stands in brackets.
    What is no address matches nobody. All stay where a request has no such header, and nobody where none is listed:
    clients choose for themselves here, so it does not belong in production.
    """

    plugin_type = "header-based-testing-filter"

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        lists = [value for name, value in request.headers.fields() if name == ENDPOINT_SELECTION]
        if not lists:
            return np.ones(len(candidates), dtype=np.bool_)
        return Subset.parse(lists).mask(candidates.snapshot, candidates.slots)
