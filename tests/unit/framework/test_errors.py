# SPDX-License-Identifier: Apache-2.0
"""The table of refusals that gateways and clients match on."""

import pytest

from epp.framework import errors, refusals
from epp.framework.refusals import Breach

SATURATED, NOBODY = "rejected-saturated", "rejected-no-endpoints"
UNMET = (
    "no model server meets the requirements of this request (hardware, price, labels), and a retry does not help: "
    "ask for less"
)
TOO_MANY_BYTES = (
    "the gateway holds too many bytes of requests whose bodies are not complete: retry later, or send a smaller body"
)
GROUPS = {
    (400, None, "BadRequest"): [
        (errors.NoParserError("/x"), "path '/x' belongs to no API that is served here: correct the URL"),
        (errors.MalformedBodyError("bad"), "bad"),
        (errors.BodyMissingError(), "the request has no body: send a JSON object"),
        (
            errors.ModelMissingError(),
            'the request names no model: add "model" to the JSON body, with the name of a served model',
        ),
    ],
    (401, None, "Unauthorized"): [
        (errors.UnauthorizedError("who?"), "who?"),
        (errors.UnknownApiKeyError(), "the API key of this request is unknown: send a valid one"),
        (
            errors.WithoutApiKeyError("x-api-key"),
            "this request has no API key: send the header 'x-api-key' with the key",
        ),
        (
            errors.UnknownClientError(),
            "this request belongs to no known client: ask the operator of this API for access",
        ),
    ],
    (403, None, "Forbidden"): [(errors.ForbiddenError("no"), "no")],
    (404, None, "NotFound"): [(errors.NotFoundError("what?"), "what?")],
    (503, "rejected-starting", "ServiceUnavailable"): [(refusals.StartingError(), "the gateway is starting: retry")],
    (503, "superseded", "ServiceUnavailable"): [
        (
            refusals.SupersededError(),
            "the gateway in front has retried this request, and that attempt is served instead of this one",
        )
    ],
    (412, None, "PreconditionFailed"): [
        (
            errors.PreconditionFailedError(),
            (
                "no model server holds the KV cache of this prompt: send it without the header 'Prefer: "
                "if-available' to have it computed"
            ),
        )
    ],
    (408, "rejected-body-timeout", "RequestTimeout"): [
        (
            refusals.BodyTimeoutError(),
            "the rest of the request body did not arrive in time: send it without long pauses",
        )
    ],
    (503, "rejected-streams", "ServiceUnavailable"): [
        (refusals.TooManyStreamsError(), "the gateway has too many requests under way: retry later")
    ],
    (503, "rejected-pending-streams", "ServiceUnavailable"): [
        (refusals.TooManyPendingError(), "the gateway waits for the bodies of too many other requests: retry later")
    ],
    (503, "rejected-gathered-bytes", "ServiceUnavailable"): [(refusals.TooManyBytesError(), TOO_MANY_BYTES)],
    (413, None, "PayloadTooLarge"): [
        (errors.BodyTooLargeError(9), "the request body is larger than 9 bytes, the limit here: send a smaller one")
    ],
    (431, None, "RequestHeaderFieldsTooLarge"): [
        (
            errors.HeadersTooLargeError(9, 99),
            (
                "the request has more than 9 header fields, or more than 99 bytes of them, the limits here: "
                "send fewer, or shorter ones"
            ),
        )
    ],
    (502, None, "BadGateway"): [
        (errors.BadResponseError(9, 99), "the model server sent a response that the gateway does not forward")
    ],
    (429, SATURATED, "ResourceExhausted"): [
        (
            refusals.SaturatedError(),
            (
                "no model server can take this request now: all are too busy, or none meets its requirements; "
                "retry later, or ask for less"
            ),
        ),
        (refusals.AllBusyError(), "all model servers that can take this request are busy: retry later"),
        (
            refusals.SheddableDroppedError(),
            "all model servers are busy, and this request is of low priority: retry later",
        ),
        (refusals.QueueFullError("full"), "full"),
        (errors.AdmissionDeniedError(refusals.SaturatedError("busy")), "request cannot be admitted: busy"),
    ],
    (429, "rejected-constraint", "ResourceExhausted"): [(refusals.UnmetConstraintError(), UNMET)],
    (503, "rejected-unavailable", "ServiceUnavailable"): [
        (refusals.UnavailableError(), "no model server that can take this request is ready: retry later")
    ],
    (503, "rejected-stale", "ServiceUnavailable"): [
        (
            refusals.StaleDataError(),
            "there are no recent data about the model servers that can take this request: retry later",
        )
    ],
    (429, "rejected-quota", "ResourceExhausted"): [
        (
            refusals.QuotaExceededError(Breach("team-a", "total.max.workers.limit", 51, 50), 2),
            "quota total.max.workers.limit of 'team-a' is 50, and with this request 51: retry later",
        )
    ],
    (413, "rejected-quota", "PayloadTooLarge"): [
        (
            refusals.OverQuotaError(Breach("team-a", "single.max.promptTokens", 9000, 8000), 413),
            "quota single.max.promptTokens of 'team-a' is 8000, and with this request 9000: send a smaller request",
        )
    ],
    (429, "rejected-ttl-expired", "ResourceExhausted"): [
        (refusals.QueueTimeoutError("60s"), "the request timed out in the queue for a model server: 60s; retry later"),
        (
            refusals.TargetMissedError("it has waited 2.0 s"),
            (
                "the request cannot have its first token within the requested time: it has waited 2.0 "
                "s; retry later, or allow more time"
            ),
        ),
    ],
    (503, NOBODY, "ServiceUnavailable"): [
        (refusals.NoEndpointsError(), "no model server is available for this request: retry later"),
        (refusals.NoClustersError("placement a/b chose none"), "no cluster is available for this request: retry later"),
        (refusals.ScreenedOutError(), "no model server takes requests like this one now: retry later"),
        (
            refusals.QueueFullNoEndpointsError("60"),
            "no model server is available, and the queue is full: 60; retry later",
        ),
        (
            refusals.QueueTimeoutNoEndpointsError("60s"),
            "the request timed out in the queue, and no model server is available: 60s; retry later",
        ),
    ],
    (503, "rejected-context-cancelled", "ServiceUnavailable"): [
        (refusals.ClientGoneError("eof"), "client disconnected: eof")
    ],
    (503, "rejected-shutting-down", "ServiceUnavailable"): [
        (refusals.ShuttingDownError("bye"), "the gateway is shutting down: bye; retry")
    ],
    (500, None, "Internal"): [
        (
            errors.PluginFailedError("p", "boom"),
            "the gateway failed on this request: retry, and if it fails again, contact the operator of this service",
        )
    ],
}
"""Errors and their sentences, by status, reason and code."""
TABLE = [(error, *group, text) for group, rows in GROUPS.items() for error, text in rows]


@pytest.mark.parametrize(("error", "status", "reason", "code", "text"), TABLE, ids=lambda value: type(value).__name__)
def test_status_reason_and_sentence(error, status, reason, code, text):
    assert (error.status, error.reason, error.code, error.message) == (status, reason, code, text)
    if not error.llm_d_message:
        assert error.sentence == f"inference error: {code} - {text}"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (errors.ModelMissingError(), "BadRequest - model not found in request body"),
        (refusals.SheddableDroppedError(), "ResourceExhausted - system saturated, sheddable request dropped"),
        (refusals.SaturatedError(), "ResourceExhausted - no endpoints available for the given request"),
        (errors.PreconditionFailedError(), "PreconditionFailed - no decode worker has the requested KV cache"),
        (refusals.QueueTimeoutError("10s"), "ResourceExhausted - request timed out in queue: 10s"),
        (
            refusals.NoEndpointsError(),
            "ServiceUnavailable - failed to find endpoint candidates for serving the request",
        ),
        (refusals.ScreenedOutError(), "ServiceUnavailable - screeners eliminated all endpoint candidates"),
        (refusals.QueueFullNoEndpointsError("full"), "ServiceUnavailable - no endpoints available: full"),
        (
            refusals.QueueTimeoutNoEndpointsError("10s"),
            "ServiceUnavailable - request timed out in queue and no endpoints are available: 10s",
        ),
        (refusals.ClientGoneError("left"), "ServiceUnavailable - client disconnected: left"),
        (refusals.ShuttingDownError("stop"), "ServiceUnavailable - flow controller shutting down: stop"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_plain_sentences_of_llm_d_are_kept_to_the_letter(error, sentence):
    assert error.sentence == f"inference error: {sentence}"


@pytest.mark.parametrize(("status", "code"), refusals.CONSTRAINT_CODES.items())
def test_gie_10_the_status_of_unmet_constraints_has_its_code(status, code):
    error = refusals.UnmetConstraintError(status)
    assert (error.status, error.reason) == (status, "rejected-constraint")
    assert f"{error.code} - {error.message}" == f"{code} - {UNMET}"


def test_gie_10_clients_are_told_to_wait_where_that_helps_and_only_there():
    waits = {type(error): error.retry_after_seconds for error, *_ in TABLE if error.retry_after_seconds}
    later = {error: 5 for error in waits if issubclass(error, refusals.NoEndpointsError | refusals.UnavailableError)}
    soon = {
        *(refusals.AllBusyError, refusals.SheddableDroppedError, refusals.QueueFullError, refusals.QueueTimeoutError),
        *(refusals.TargetMissedError, refusals.StaleDataError, refusals.ShuttingDownError, refusals.StartingError),
        *(refusals.TooManyBytesError, refusals.TooManyPendingError, refusals.TooManyStreamsError),
    }
    assert len(later) == 6
    assert waits == later | dict.fromkeys(soon, 1) | {refusals.QuotaExceededError: 2}
    assert errors.AdmissionDeniedError(refusals.AllBusyError()).retry_after_seconds == 1


@pytest.mark.parametrize("reason", ["evicted", "evicted-queue-pressure", "evicted-priority"])
def test_eviction_has_its_own_reasons_and_no_prefix(reason):
    error = refusals.EvictedError(reason)
    assert (error.status, error.reason, error.sentence) == (429, reason, "request evicted by flow control")


def test_every_error_that_is_raised_is_in_the_table():
    bases = {
        *(errors.RequestError, errors.BadRequestError, errors.InternalError),
        *(refusals.ResourceExhaustedError, refusals.ServiceUnavailableError, refusals.EvictedError),
    }
    values = (*vars(errors).values(), *vars(refusals).values())
    known = {value for value in values if isinstance(value, type) and issubclass(value, errors.RequestError)}
    assert known - bases == {type(error) for error, *_ in TABLE}


def test_quotas_are_told_in_units_that_people_read():
    memory = Breach("a", "total.max.vram.request", 80.5 * 2**30, 80 * 2**30)
    tokens = Breach("a", "total.max.tokens", 12_345_678, 12_000_000)
    dollars = Breach("a", "total.max.dollarsPerDay", 20.05, 20)
    assert str(memory) == "quota total.max.vram.request of 'a' is 80 GiB, and with this request 80.5 GiB"
    assert str(tokens) == "quota total.max.tokens of 'a' is 12000000, and with this request 12345678"
    assert str(dollars) == "quota total.max.dollarsPerDay of 'a' is 20, and with this request 20.05"
