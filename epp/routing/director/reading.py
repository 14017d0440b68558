# SPDX-License-Identifier: Apache-2.0
"""An incoming request, and the parsing of its body."""

from typing import NamedTuple

from epp.framework.candidates import Subset
from epp.framework.errors import BadRequestError, BodyMissingError
from epp.framework.headers import METHOD, PATHS
from epp.framework.request import Headers, RequestBody
from epp.routing.bodies import completed
from epp.routing.director.pipeline import ParsedBody, Pipeline
from epp.routing.director.tracing import RequestTrace

DEFAULT_PATH = "/v1/completions"
_NOTHING = ParsedBody(RequestBody(), names_model=False)


class IncomingRequest(NamedTuple):
    """A request before its body is read, and the pipeline for it."""

    pipeline: Pipeline
    path: str
    headers: Headers
    size_bytes: int
    subset: Subset | None
    trace: RequestTrace | None = None
    began_at: float | None = None
    """When its headers came; None for just now."""


def read(call: IncomingRequest, body: bytes, *, incomplete: bool) -> ParsedBody:
    """Return the parsed body; raises a BadRequestError.

    An `incomplete` body is empty where the missing part may make it valid, or name a model.
    """
    parsers = call.pipeline.parsers
    if not body:
        if not incomplete and call.headers.get(METHOD) == "POST" and parsers.claims(call.path):
            raise BodyMissingError
        return _NOTHING
    if not incomplete:
        return parsers.parse(call.path, call.headers, body)
    try:
        parsed = parsers.parse(call.path, call.headers, completed(body))
    except BadRequestError:
        return _NOTHING
    return parsed if parsed.body.model else _NOTHING


def path_of(headers: Headers) -> str:
    """Return the path of a request, without the query."""
    path = headers.first_of(*PATHS) or DEFAULT_PATH
    return path.partition("?")[0]
