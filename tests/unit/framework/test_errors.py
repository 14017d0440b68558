# SPDX-License-Identifier: Apache-2.0
"""The table of refusals that gateways and clients match on."""

import pytest

from epp.framework import errors
from epp.framework.errors import Breach

SATURATED, NOBODY = "rejected-saturated", "rejected-no-endpoints"
UNMET = (
    "no model server here is what this request asks for (hardware, price or labels), and to retry does not help: "
    "ask for less"
)
TOO_MANY_BYTES = (
    "the gateway holds too many bytes of requests whose bodies are not complete: retry later, or send a smaller body"
)
TABLE = [
    (errors.NoParserError("/x"), 400, None, "BadRequest - path '/x' is of no API that is served here: correct the URL"),
    (errors.MalformedBodyError("bad"), 400, None, "BadRequest - bad"),
    (errors.BodyMissingError(), 400, None, "BadRequest - the request has no body: send a JSON object"),
    (
        errors.ModelMissingError(),
        400,
        None,
        'BadRequest - the request names no model: add "model" to the JSON body, with the name of a served model',
    ),
    (errors.UnauthorizedError("who?"), 401, None, "Unauthorized - who?"),
    (
        errors.UnknownApiKeyError(),
        401,
        None,
        "Unauthorized - the API key of this request is not known here: send a valid one",
    ),
    (
        errors.WithoutApiKeyError("x-api-key"),
        401,
        None,
        "Unauthorized - this request has no API key: send the header 'x-api-key' with the key",
    ),
    (
        errors.UnknownClientError(),
        401,
        None,
        "Unauthorized - this request is of no client that is known here: ask the operator of this API for access",
    ),
    (errors.ForbiddenError("no"), 403, None, "Forbidden - no"),
    (errors.NotFoundError("what?"), 404, None, "NotFound - what?"),
    (
        errors.StartingError(),
        503,
        "rejected-starting",
        "ServiceUnavailable - the gateway is starting: retry",
    ),
    (
        errors.SupersededError(),
        503,
        "superseded",
        (
            "ServiceUnavailable - the gateway in front has sent this request again, and that attempt is served instead "
            "of this one"
        ),
    ),
    (
        errors.PreconditionFailedError(),
        412,
        None,
        (
            "PreconditionFailed - no model server holds the KV cache of this prompt: send it without the header "
            "'Prefer: if-available' to have it computed"
        ),
    ),
    (
        errors.BodyTimeoutError(),
        408,
        "rejected-body-timeout",
        "RequestTimeout - the rest of the request body did not come in time: send it without long pauses",
    ),
    (
        errors.TooManyStreamsError(),
        503,
        "rejected-streams",
        "ServiceUnavailable - the gateway has too many requests under way: retry later",
    ),
    (
        errors.TooManyPendingError(),
        503,
        "rejected-pending-streams",
        "ServiceUnavailable - the gateway waits for the bodies of too many other requests: retry later",
    ),
    (
        errors.TooManyBytesError(),
        503,
        "rejected-gathered-bytes",
        f"ServiceUnavailable - {TOO_MANY_BYTES}",
    ),
    (
        errors.BodyTooLargeError(9),
        413,
        None,
        "PayloadTooLarge - the request body is larger than 9 bytes, the limit here: send a smaller one",
    ),
    (
        errors.HeadersTooLargeError(9, 99),
        431,
        None,
        (
            "RequestHeaderFieldsTooLarge - the request has more than 9 header fields, or more than 99 bytes of them, "
            "the limits here: send fewer, or shorter ones"
        ),
    ),
    (
        errors.BadResponseError(9, 99),
        502,
        None,
        "BadGateway - the model server gave a response that the gateway does not pass on",
    ),
    (
        errors.SaturatedError(),
        429,
        SATURATED,
        (
            "ResourceExhausted - no model server can take this request now: all are too busy, or none is what it asks "
            "for; retry later, or ask for less"
        ),
    ),
    (
        errors.AllBusyError(),
        429,
        SATURATED,
        "ResourceExhausted - all model servers that can take this request are busy: retry later",
    ),
    (errors.UnmetConstraintError(), 429, "rejected-constraint", f"ResourceExhausted - {UNMET}"),
    (
        errors.UnavailableError(),
        503,
        "rejected-unavailable",
        "ServiceUnavailable - no model server that can take this request is ready: retry later",
    ),
    (
        errors.StaleDataError(),
        503,
        "rejected-stale",
        "ServiceUnavailable - nothing recent is known of the model servers that can take this request: retry later",
    ),
    (
        errors.SheddableDroppedError(),
        429,
        SATURATED,
        "ResourceExhausted - all model servers are busy, and this request is of low priority: retry later",
    ),
    (errors.QueueFullError("full"), 429, SATURATED, "ResourceExhausted - full"),
    (
        errors.QuotaExceededError(Breach("team-a", "total.max.workers.limit", 51, 50), 2),
        429,
        "rejected-quota",
        ("ResourceExhausted - quota total.max.workers.limit of 'team-a' is 50, and with this request 51: retry later"),
    ),
    (
        errors.OverQuotaError(Breach("team-a", "single.max.promptTokens", 9000, 8000), 413),
        413,
        "rejected-quota",
        (
            "PayloadTooLarge - quota single.max.promptTokens of 'team-a' is 8000, and with this request 9000: send a "
            "smaller request"
        ),
    ),
    (
        errors.QueueTimeoutError("60s"),
        429,
        "rejected-ttl-expired",
        "ResourceExhausted - the request timed out in the queue for a model server: 60s; retry later",
    ),
    (
        errors.TargetMissedError("it has waited 2.0 s"),
        429,
        "rejected-ttl-expired",
        (
            "ResourceExhausted - the request cannot have its first token within the time that it asked for: "
            "it has waited 2.0 s; retry later, or allow more time"
        ),
    ),
    (
        errors.NoEndpointsError(),
        503,
        NOBODY,
        "ServiceUnavailable - no model server is available for this request: retry later",
    ),
    (
        errors.NoClustersError("placement a/b chose none"),
        503,
        NOBODY,
        "ServiceUnavailable - no cluster is available for this request: retry later",
    ),
    (
        errors.ScreenedOutError(),
        503,
        NOBODY,
        "ServiceUnavailable - no model server takes requests like this one now: retry later",
    ),
    (
        errors.QueueFullNoEndpointsError("60"),
        503,
        NOBODY,
        "ServiceUnavailable - no model server is available, and the queue is full: 60; retry later",
    ),
    (
        errors.QueueTimeoutNoEndpointsError("60s"),
        503,
        NOBODY,
        "ServiceUnavailable - the request timed out in the queue, and no model server is available: 60s; retry later",
    ),
    (
        errors.ClientGoneError("eof"),
        503,
        "rejected-context-cancelled",
        "ServiceUnavailable - client disconnected: eof",
    ),
    (
        errors.ShuttingDownError("bye"),
        503,
        "rejected-shutting-down",
        "ServiceUnavailable - the gateway is shutting down: bye; retry",
    ),
    (
        errors.PluginFailedError("p", "boom"),
        500,
        None,
        (
            "Internal - the gateway failed on this request: retry, and if it fails again, tell the operator of this "
            "service"
        ),
    ),
    (
        errors.AdmissionDeniedError(errors.SaturatedError("busy")),
        429,
        SATURATED,
        "ResourceExhausted - request cannot be admitted: busy",
    ),
]


@pytest.mark.parametrize(("error", "status", "reason", "sentence"), TABLE, ids=lambda value: type(value).__name__)
def test_status_reason_and_sentence(error, status, reason, sentence):
    assert (error.status, error.reason) == (status, reason)
    if error.llm_d_message:
        assert f"{error.code} - {error.message}" == sentence
    else:
        assert error.sentence == f"inference error: {sentence}"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (errors.ModelMissingError(), "BadRequest - model not found in request body"),
        (errors.SheddableDroppedError(), "ResourceExhausted - system saturated, sheddable request dropped"),
        (errors.SaturatedError(), "ResourceExhausted - no endpoints available for the given request"),
        (errors.PreconditionFailedError(), "PreconditionFailed - no decode worker has the requested KV cache"),
        (errors.QueueTimeoutError("10s"), "ResourceExhausted - request timed out in queue: 10s"),
        (
            errors.NoEndpointsError(),
            "ServiceUnavailable - failed to find endpoint candidates for serving the request",
        ),
        (errors.ScreenedOutError(), "ServiceUnavailable - screeners eliminated all endpoint candidates"),
        (errors.QueueFullNoEndpointsError("full"), "ServiceUnavailable - no endpoints available: full"),
        (
            errors.QueueTimeoutNoEndpointsError("10s"),
            "ServiceUnavailable - request timed out in queue and no endpoints are available: 10s",
        ),
        (errors.ClientGoneError("left"), "ServiceUnavailable - client disconnected: left"),
        (errors.ShuttingDownError("stop"), "ServiceUnavailable - flow controller shutting down: stop"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_plain_sentences_of_llm_d_are_kept_to_the_letter(error, sentence):
    assert error.sentence == f"inference error: {sentence}"


@pytest.mark.parametrize(("status", "code"), errors.CONSTRAINT_CODES.items())
def test_gie_10_the_status_of_unmet_constraints_has_its_code(status, code):
    error = errors.UnmetConstraintError(status)
    assert (error.status, error.reason) == (status, "rejected-constraint")
    assert f"{error.code} - {error.message}" == f"{code} - {UNMET}"


def test_gie_10_clients_are_told_to_wait_where_that_helps_and_only_there():
    waits = {type(error).__name__: error.retry_after_seconds for error, *_ in TABLE if error.retry_after_seconds}
    assert waits == {
        "AllBusyError": 1,
        "SheddableDroppedError": 1,
        "QueueFullError": 1,
        "QuotaExceededError": 2,
        "QueueTimeoutError": 1,
        "TargetMissedError": 1,
        "StaleDataError": 1,
        "ShuttingDownError": 1,
        "StartingError": 1,
        "TooManyBytesError": 1,
        "TooManyPendingError": 1,
        "TooManyStreamsError": 1,
        "UnavailableError": 5,
        "NoClustersError": 5,
        "NoEndpointsError": 5,
        "ScreenedOutError": 5,
        "QueueFullNoEndpointsError": 5,
        "QueueTimeoutNoEndpointsError": 5,
    }
    assert errors.AdmissionDeniedError(errors.AllBusyError()).retry_after_seconds == 1


@pytest.mark.parametrize("reason", ["evicted", "evicted-queue-pressure", "evicted-priority"])
def test_eviction_has_its_own_reasons_and_no_prefix(reason):
    error = errors.EvictedError(reason)
    assert (error.status, error.reason, error.sentence) == (429, reason, "request evicted by flow control")


def test_every_error_that_is_raised_is_in_the_table():
    bases = {
        errors.RequestError,
        errors.BadRequestError,
        errors.ResourceExhaustedError,
        errors.ServiceUnavailableError,
        errors.InternalError,
        errors.EvictedError,
    }
    known = {
        value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, errors.RequestError)
    }
    assert known - bases == {type(error) for error, *_ in TABLE}


def test_quotas_are_told_in_units_that_people_read():
    memory = Breach("a", "total.max.vram.request", 80.5 * 2**30, 80 * 2**30)
    tokens = Breach("a", "total.max.tokens", 12_345_678, 12_000_000)
    dollars = Breach("a", "total.max.dollarsPerDay", 20.05, 20)
    assert str(memory) == "quota total.max.vram.request of 'a' is 80 GiB, and with this request 80.5 GiB"
    assert str(tokens) == "quota total.max.tokens of 'a' is 12000000, and with this request 12345678"
    assert str(dollars) == "quota total.max.dollarsPerDay of 'a' is 20, and with this request 20.05"
