# SPDX-License-Identifier: Apache-2.0
"""An incoming request: parsing of its body, seed, priority, model and flow."""

import uuid
from hashlib import blake2b
from secrets import token_bytes
from typing import NamedTuple

from epp.framework.candidates import Subset
from epp.framework.errors import BadRequestError, BodyMissingError, ModelMissingError
from epp.framework.guard import Guard
from epp.framework.headers import FAIRNESS_ID, METHOD, PATHS, REQUEST_ID
from epp.framework.quotas import TENANT
from epp.framework.request import AGENT_IDENTITY, DEFAULT_FLOW, Headers, Request, RequestBody
from epp.framework.roles import RequestHeaders
from epp.routing.bodies import completed
from epp.routing.director.observers import TRACE, DirectorObserver, RequestTrace
from epp.routing.director.pipeline import ParsedBody, Pipeline
from epp.routing.director.policies import PoolPolicies, assign_priority, choose_model, give_priority

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


def request_of(
    call: IncomingRequest,
    parsed: ParsedBody,
    policies: PoolPolicies,
    *,
    seed: int,
    now: float,
    observer: DirectorObserver,
    use_subset: bool,
    dry_run: bool = False,
) -> Request:
    """Return the request, with priority and model; raises ModelMissingError."""
    request = Request(
        id=call.headers.get(REQUEST_ID) or str(uuid.uuid4()),
        body=parsed.body,
        headers=call.headers,
        path=call.path,
        size_bytes=call.size_bytes,
        received_at=now,
        began_at=now if call.began_at is None else call.began_at,
        seed=seed,
        subset=call.subset if use_subset else None,
        dry_run=dry_run,
    )
    if call.trace is not None:
        request.put(TRACE, call.trace)
    give_priority(request, policies)
    if parsed.names_model:
        rewrite = choose_model(request, policies)
        if rewrite is not None:
            observer.model_rewritten(request, rewrite)
        if not request.model:
            raise ModelMissingError
    return request


def give_flow(request: Request, pipeline: Pipeline, guard: Guard) -> None:
    """Run the hooks for request headers, and set the flow by what they say; raises a RequestError of theirs."""
    for plugin in pipeline.of(RequestHeaders):
        guard.call(RequestHeaders.role, plugin, plugin.request_headers, request)
    tenant = request.get(TENANT)
    if tenant is None:
        request.fairness_id = request.headers.first_of(*FAIRNESS_ID) or request.get(AGENT_IDENTITY) or DEFAULT_FLOW
    else:
        assign_priority(request, tenant)


_SEED_BYTES = 8
_SECRET_BYTES = 16


class Seeds:
    """A keyed hash of a counter; the key is secret and drawn once per process."""

    __slots__ = ("_count", "_secret")

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = token_bytes(_SECRET_BYTES) if secret is None else secret
        self._count = 0

    def next(self) -> int:
        """Return the next seed, 64 bits."""
        self._count += 1
        digest = blake2b(self._count.to_bytes(_SEED_BYTES), key=self._secret, digest_size=_SEED_BYTES)
        return int.from_bytes(digest.digest())
