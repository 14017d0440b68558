"""Tells the client, for conformance tests, which endpoint the gateway says it used."""

from collections.abc import Mapping

from epp.framework import Request, Response, ResponseHeaders
from epp.framework.headers import CONFORMANCE_SERVED

NOT_SAID = "no served metadata"


class ServedVerifier(ResponseHeaders):
    """Sets the response header `x-conformance-test-served-endpoint` to the `ip:port` that the gateway reported.

    Where it reported none, the header says `no served metadata`: never this picker's own choice, which is what a test
    compares with. For tests only.
    """

    plugin_type = "destination-endpoint-served-verifier"

    def response_headers(self, request: Request, response: Response) -> Mapping[str, str]:  # noqa: ARG002
        return {CONFORMANCE_SERVED: response.served_address or NOT_SAID}
