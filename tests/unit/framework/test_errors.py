"""The table of refusals that gateways and clients match on."""

import pytest

from epp.framework import errors

SATURATED, NOBODY = "rejected-saturated", "rejected-no-endpoints"
TABLE = [
    (errors.NoParserError("/x"), 400, None, "BadRequest - no parser found for path '/x'"),
    (errors.MalformedBodyError("bad"), 400, None, "BadRequest - bad"),
    (errors.ModelMissingError(), 400, None, "BadRequest - model not found in request body"),
    (errors.UnauthorizedError("who?"), 401, None, "Unauthorized - who?"),
    (errors.ForbiddenError("no"), 403, None, "Forbidden - no"),
    (errors.NotFoundError("what?"), 404, None, "NotFound - what?"),
    (
        errors.PreconditionFailedError(),
        412,
        None,
        "PreconditionFailed - no decode worker has the requested KV cache",
    ),
    (errors.BodyTooLargeError(9), 413, None, "PayloadTooLarge - request body is larger than 9 bytes"),
    (errors.SaturatedError(), 429, SATURATED, "ResourceExhausted - no endpoints available for the given request"),
    (
        errors.SheddableDroppedError(),
        429,
        SATURATED,
        "ResourceExhausted - system saturated, sheddable request dropped",
    ),
    (errors.QueueFullError("full"), 429, SATURATED, "ResourceExhausted - full"),
    (
        errors.QueueTimeoutError("60s"),
        429,
        "rejected-ttl-expired",
        "ResourceExhausted - request timed out in queue: 60s",
    ),
    (
        errors.NoEndpointsError(),
        503,
        NOBODY,
        "ServiceUnavailable - failed to find endpoint candidates for serving the request",
    ),
    (
        errors.ScreenedOutError(),
        503,
        NOBODY,
        "ServiceUnavailable - screeners eliminated all endpoint candidates",
    ),
    (errors.QueueFullNoEndpointsError("full"), 503, NOBODY, "ServiceUnavailable - no endpoints available: full"),
    (
        errors.QueueTimeoutNoEndpointsError("60s"),
        503,
        NOBODY,
        "ServiceUnavailable - request timed out in queue and no endpoints are available: 60s",
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
        "ServiceUnavailable - flow controller shutting down: bye",
    ),
    (errors.PluginFailedError("p", "boom"), 500, None, "Internal - plugin 'p' failed: boom"),
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
    assert error.sentence == f"inference error: {sentence}"


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
