# SPDX-License-Identifier: Apache-2.0
"""Failures of requests that say something about the endpoint."""

from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias

from epp.framework.endpoint import Endpoint


class Verdict(StrEnum):
    """The outcome of one question."""

    ANSWERS = "answers"
    REFUSES = "refuses"
    """Nothing listens there, or it closes connections without a word."""
    SILENT = "silent"
    """No answer in time, or the endpoint could not be asked."""


Told: TypeAlias = Callable[[Verdict], None]
Ask: TypeAlias = Callable[[Endpoint, Told], None]
"""Asks an endpoint soon, and tells the verdict once."""


class Failure(StrEnum):
    """A failed request, by what it says about the endpoint."""

    CONNECTION = "connection"
    """The gateway had no connection to it, or lost it before the response."""
    GATEWAY = "gateway"
    """It answered 502, 503 or 504: what serves behind it is gone."""
    SERVER = "server"
    """Any other error of its own, which the request may have caused; a 200 without a token, too."""
    OVERLOAD = "overload"
    """It answered 429; counts where it has not succeeded shortly before."""
    MODEL = "model"
    """It answered 404; counts while another endpoint answers requests for the same model."""


_NOT_IMPLEMENTED, _SERVER_ERROR = 501, 500
_NOT_FOUND, _TOO_MANY = 404, 429
_GATEWAY_ERRORS = frozenset({502, 503, 504})
_UNAVAILABLE, _TIMEOUT = 503, 504


def failure_of(status: int, *, by_gateway: bool, overloaded: bool) -> Failure | None:
    """Return what a response of that status says; None for nothing.

    `by_gateway` says that the gateway made the response, `overloaded` that the server named a time to try again. A
    gateway's own 504 is a time limit of its route, which a long answer exceeds as well: it counts as the least.
    """
    if status in (_NOT_FOUND, _TOO_MANY) and not by_gateway:
        return Failure.MODEL if status == _NOT_FOUND else Failure.OVERLOAD
    if status < _SERVER_ERROR or status == _NOT_IMPLEMENTED:
        return None
    if by_gateway:
        if status == _TIMEOUT:
            return Failure.SERVER
        return Failure.CONNECTION if status in _GATEWAY_ERRORS else None
    if status in _GATEWAY_ERRORS:
        return None if overloaded and status == _UNAVAILABLE else Failure.GATEWAY
    return Failure.SERVER
