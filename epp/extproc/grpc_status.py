# SPDX-License-Identifier: Apache-2.0
"""Statuses of gRPC calls that clients make to model servers, and the HTTP statuses that they correspond to."""

from epp.framework import Headers

GRPC_STATUS = "grpc-status"
_CONTENT_TYPE = "application/grpc"
_INTERNAL = 13
_HTTP_BY_GRPC = {
    "1": 499, "2": 500, "3": 400, "4": 504, "5": 404, "6": 409, "7": 403, "8": 429, "9": 400, "10": 409, "11": 400,
    "12": 501, "13": 500, "14": 503, "15": 500, "16": 401,
}  # fmt: skip
_GRPC_BY_HTTP = {400: 3, 401: 16, 403: 7, 404: 12, 408: 4, 412: 9, 413: 8, 429: 8, 431: 8, 503: 14}


def is_grpc(headers: Headers) -> bool:
    """Return whether a request is a gRPC call."""
    return headers.get("content-type", "").startswith(_CONTENT_TYPE)


def grpc_status(status: int) -> int:
    """Return the status of a call that is refused with this HTTP status."""
    return _GRPC_BY_HTTP.get(status, _INTERNAL)


def http_status(grpc: str, otherwise: int) -> int:
    """Return the HTTP status for the status of a call; `otherwise` for OK and unknown ones."""
    return _HTTP_BY_GRPC.get(grpc, otherwise)
