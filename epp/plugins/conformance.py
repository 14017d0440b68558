# SPDX-License-Identifier: Apache-2.0
"""Plugins for conformance tests of gateways; not for production."""

from collections.abc import Mapping

from epp.framework import Candidates, Filter, Mask, Request, Response, ResponseHeaders
from epp.framework.candidates import Subset
from epp.framework.headers import CONFORMANCE_SERVED, ENDPOINT_SELECTION


class HeaderBasedTestingFilter(Filter):
    """Keeps the endpoints listed in the header `test-epp-endpoint-selection`, for tests of gateways.

    The header is a comma-separated list of `IP` (all its ports) and `IP:port`; write an IPv6 address with a port in
    brackets. A malformed address matches no endpoint. Without the header, or with an empty list, no endpoint is kept.
    Clients choose endpoints themselves, so do not use it in production.
    """

    plugin_type = "header-based-testing-filter"
    drop_means = "is not listed in the header"

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        lists = [value for name, value in request.headers.fields() if name == ENDPOINT_SELECTION]
        return Subset.parse(lists).mask(candidates.snapshot, candidates.slots)


class ServedVerifier(ResponseHeaders):
    """Sets the response header `x-conformance-test-served-endpoint` to the `ip:port` that the gateway reported.

    Without a report, the value is `no served metadata` and not the picker's choice, because the test compares the two.
    For tests only.
    """

    plugin_type = "destination-endpoint-served-verifier"

    def response_headers(self, request: Request, response: Response) -> Mapping[str, str]:
        return {CONFORMANCE_SERVED: response.served_address or "no served metadata"}
