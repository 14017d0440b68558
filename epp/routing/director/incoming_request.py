# SPDX-License-Identifier: Apache-2.0
"""Incoming requests: parsing of the body, seed, priority, model and flow."""

import uuid
from collections.abc import Iterator
from hashlib import blake2b
from secrets import token_bytes
from typing import Any, Self

import msgspec

from epp.framework.candidates import Subset
from epp.framework.errors import BadRequestError, BodyMissingError, ModelMissingError
from epp.framework.headers import FAIRNESS_ID, METHOD, MODEL_REWRITE, OBJECTIVE, PATHS, REQUEST_ID
from epp.framework.plugin import Guard
from epp.framework.quotas import TENANT
from epp.framework.request import AGENT_IDENTITY, DEFAULT_FLOW, Headers, Request, RequestBody
from epp.framework.roles import Admitter, RequestHeaders
from epp.routing.bodies.model_member import completed
from epp.routing.director.observers import DirectorObserver
from epp.routing.director.pipeline import ParserTable, Pipeline, PoolPolicies, assign_priority

DEFAULT_PATH = "/v1/completions"
_NO_BODY = RequestBody()
_REWRITE_DRAW = "model-rewrite"
_SEED_BYTES = 8
_SECRET_BYTES = 16


class IncomingRequest(msgspec.Struct, eq=False):
    """A request from the arrival of its body until it is routed or refused."""

    pipeline: Pipeline
    request: Request
    admitters: Iterator[Admitter[Any]]
    """Admitters that have not been called yet."""
    names_model: bool = False
    """Whether its API requires a model."""
    content: bytes = b""
    """The body, until the request is routed; empty if it is incomplete, or if the pipeline does not read it."""
    admitted: bool = False
    """Whether it passed shedding: a request that waited is not refused because of later load."""

    @classmethod
    def read(
        cls,
        pipeline: Pipeline,
        headers: Headers,
        body: bytes,
        subset: Subset | None,
        *,
        incomplete: bool = False,
        dry_run: bool = False,
        parsed: RequestBody | None = None,
    ) -> Self:
        """Parse the body, unless the caller passes `parsed`; raises a BadRequestError.

        An `incomplete` body is treated as empty if it is not valid so far or does not name a model yet.
        """
        path, names_model, size_bytes = path_of(headers), True, len(body)
        if parsed is None:
            parsed, names_model = _parsed(pipeline.parsers, path, headers, body, incomplete=incomplete)
        else:
            size_bytes = len(parsed.prompt)
        name = headers.get(REQUEST_ID) or str(uuid.uuid4())
        request = Request(
            name, body=parsed, headers=headers, path=path, size_bytes=size_bytes, subset=subset, dry_run=dry_run
        )
        content = body if pipeline.reads_content and not incomplete else b""
        return cls(pipeline, request, iter(pipeline.of(Admitter)), names_model, content)

    def identify(
        self,
        policies: PoolPolicies,
        *,
        seed: int,
        now: float,
        observer: DirectorObserver,
        began_at: float | None = None,
    ) -> None:
        """Set times, seed, priority and model; raises ModelMissingError. The headers arrived at `began_at`, or now.

        The priority is that of the objective in the request; 0 for no objective, or an unknown one. A rewrite rule for
        the model in the body takes precedence over the header.
        """
        request = self.request
        request.seed, request.received_at = seed, now
        request.began_at = now if began_at is None else began_at
        if policies.priorities and (objective := request.headers.first_of(*OBJECTIVE)):
            priority = policies.priorities.get(objective)
            if priority is not None:
                request.priority, request.objective = priority, objective
        if not self.names_model:
            return
        request.target_model = request.headers.first_of(*MODEL_REWRITE) or ""
        rewrite = policies.rewrite_of(request.body.model)
        if rewrite is not None and (model := rewrite.model_at(request.uniform(_REWRITE_DRAW))):
            request.target_model, request.rewritten_by = model, rewrite.name
            observer.model_rewritten(request, rewrite)
        if not request.model:
            raise ModelMissingError

    def assign_flow(self, guard: Guard) -> None:
        """Run the hooks for request headers, then set the flow; raises a RequestError of a hook."""
        request = self.request
        for plugin in self.pipeline.of(RequestHeaders):
            guard.call(RequestHeaders.role, plugin, plugin.request_headers, request)
        tenant = request.get(TENANT)
        if tenant is None:
            request.fairness_id = request.headers.first_of(*FAIRNESS_ID) or request.get(AGENT_IDENTITY) or DEFAULT_FLOW
        else:
            assign_priority(request, tenant)

    def use(self, pipeline: Pipeline) -> None:
        """Switch to the current pipeline, with all of its admitters."""
        if self.pipeline is not pipeline:
            self.pipeline, self.admitters = pipeline, iter(pipeline.of(Admitter))


def _parsed(
    parsers: ParserTable, path: str, headers: Headers, body: bytes, *, incomplete: bool
) -> tuple[RequestBody, bool]:
    """Return the parsed body, and whether its API requires a model."""
    if not body:
        if not incomplete and headers.get(METHOD) == "POST" and parsers.claims(path):
            raise BodyMissingError
        return _NO_BODY, False
    if not incomplete:
        suffix, parser = parsers.find(path)
        return parser.parse(suffix, headers, body), parser.names_model
    try:
        suffix, parser = parsers.find(path)
        parsed = parser.parse(suffix, headers, completed(body))
    except BadRequestError:
        return _NO_BODY, False
    return (parsed, parser.names_model) if parsed.model else (_NO_BODY, False)


def path_of(headers: Headers) -> str:
    """Return the path of a request, without the query."""
    return (headers.first_of(*PATHS) or DEFAULT_PATH).partition("?")[0]


class Seeds:
    """A keyed hash of a counter; the key is secret and drawn once per process."""

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = token_bytes(_SECRET_BYTES) if secret is None else secret
        self._count = 0

    def next(self) -> int:
        """Return the next seed, 64 bits."""
        self._count += 1
        digest = blake2b(self._count.to_bytes(_SEED_BYTES), key=self._secret, digest_size=_SEED_BYTES)
        return int.from_bytes(digest.digest())
