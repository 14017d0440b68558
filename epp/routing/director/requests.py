# SPDX-License-Identifier: Apache-2.0
"""Requests as plugins see them: made of a call whose body has been read, with priority, model and flow."""

import uuid

from epp.framework.errors import ModelMissingError
from epp.framework.guard import Guard
from epp.framework.headers import FAIRNESS_ID, REQUEST_ID
from epp.framework.quotas import TENANT
from epp.framework.request import AGENT_IDENTITY, DEFAULT_FLOW, Request
from epp.framework.roles import RequestHeaders
from epp.routing.director.observers import DirectorObserver
from epp.routing.director.pipeline import ParsedBody, Pipeline
from epp.routing.director.policies import PoolPolicies, assign_priority, choose_model, give_priority
from epp.routing.director.reading import IncomingRequest
from epp.routing.director.tracing import TRACE


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
