# SPDX-License-Identifier: Apache-2.0
"""Failures of requests that say something about the endpoint."""

from enum import StrEnum


class Failure(StrEnum):
    """A failed request, by what it says about the endpoint."""

    CONNECTION = "connection"
    """The gateway had no connection to it, or lost it before the response."""
    GATEWAY = "gateway"
    """It answered 502, 503 or 504: what serves behind it is gone."""
    SERVER = "server"
    """Any other error of its own, which the request may have caused."""


_NOT_IMPLEMENTED, _SERVER_ERROR = 501, 500
_GATEWAY_ERRORS = frozenset({502, 503, 504})
_UNAVAILABLE, _TIMEOUT = 503, 504


def failure_of(status: int, *, by_gateway: bool, overloaded: bool) -> Failure | None:
    """Return what a response of that status says; None for nothing.

    `by_gateway` says that the gateway made the response, `overloaded` that the server named a time to try again. A
    gateway's own 504 is a time limit of its route, which a long answer exceeds as well: it counts as the least.
    """
    if status < _SERVER_ERROR or status == _NOT_IMPLEMENTED:
        return None
    if by_gateway:
        if status == _TIMEOUT:
            return Failure.SERVER
        return Failure.CONNECTION if status in _GATEWAY_ERRORS else None
    if status in _GATEWAY_ERRORS:
        return None if overloaded and status == _UNAVAILABLE else Failure.GATEWAY
    return Failure.SERVER
