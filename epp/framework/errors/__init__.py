# SPDX-License-Identifier: Apache-2.0
"""All errors of a request: one type each, with HTTP status, drop reason and sentence.

RequestError
├── BadRequestError                 400
│   ├── NoParserError
│   ├── MalformedBodyError
│   ├── BodyMissingError
│   └── ModelMissingError
├── UnauthorizedError               401
│   ├── UnknownApiKeyError
│   ├── WithoutApiKeyError
│   └── UnknownClientError
├── ForbiddenError                  403
├── NotFoundError                   404
├── PreconditionFailedError         412
├── BodyTimeoutError                408: rejected-body-timeout
├── BodyTooLargeError               413
├── HeadersTooLargeError            431
├── OverQuotaError                  400 or 413: rejected-quota
├── UnmetConstraintError            429, or as configured: rejected-constraint
├── ResourceExhaustedError          429
│   ├── SaturatedError                   rejected-saturated
│   │   ├── AllBusyError
│   │   ├── SheddableDroppedError
│   │   └── QueueFullError
│   ├── QuotaExceededError               rejected-quota
│   ├── QueueTimeoutError                rejected-ttl-expired
│   ├── TargetMissedError                rejected-ttl-expired
│   └── EvictedError                     evicted, evicted-queue-pressure, evicted-priority
├── ServiceUnavailableError         503
│   ├── NoEndpointsError                 rejected-no-endpoints
│   │   ├── ScreenedOutError
│   │   ├── NoClustersError
│   │   ├── QueueFullNoEndpointsError
│   │   └── QueueTimeoutNoEndpointsError
│   ├── UnavailableError                 rejected-unavailable
│   ├── StaleDataError                   rejected-stale
│   ├── ClientGoneError                  rejected-context-cancelled
│   ├── SupersededError                  superseded
│   ├── StartingError                    rejected-starting
│   ├── TooManyStreamsError              rejected-streams
│   ├── TooManyPendingError              rejected-pending-streams
│   ├── TooManyBytesError                rejected-gathered-bytes
│   └── ShuttingDownError                rejected-shutting-down
├── BadResponseError                502
├── InternalError                   500
│   └── PluginFailedError
└── AdmissionDeniedError            the status of its cause

Statuses, codes and reasons are those that clients of llm-d-router already match on; 408, 413, 431 and 502 are ours, and
so are the reasons `rejected-constraint`, `rejected-unavailable` and `rejected-stale`, which tell apart what it calls
saturated, `rejected-quota`, `rejected-starting`, `superseded`, and those of requests that are too much for this
program: `rejected-streams`, `rejected-pending-streams`, `rejected-gathered-bytes` and `rejected-body-timeout`. The
words are for the caller: HTTP and JSON, what is wrong and what to do, no name of a plugin or of a class.
"""

from epp.framework.errors.bad_requests import (
    BadRequestError,
    BodyMissingError,
    BodyTimeoutError,
    BodyTooLargeError,
    ForbiddenError,
    HeadersTooLargeError,
    MalformedBodyError,
    ModelMissingError,
    NoParserError,
    NotFoundError,
    OverQuotaError,
    PreconditionFailedError,
    UnauthorizedError,
    UnknownApiKeyError,
    UnknownClientError,
    WithoutApiKeyError,
)
from epp.framework.errors.base import LATER_SECONDS, SOON_SECONDS, RequestError
from epp.framework.errors.configuration import ConfigurationError
from epp.framework.errors.exhausted import (
    CONSTRAINT_CODES,
    AllBusyError,
    EvictedError,
    QueueFullError,
    QueueTimeoutError,
    QuotaExceededError,
    ResourceExhaustedError,
    SaturatedError,
    SheddableDroppedError,
    TargetMissedError,
    UnmetConstraintError,
)
from epp.framework.errors.failures import AdmissionDeniedError, BadResponseError, InternalError, PluginFailedError
from epp.framework.errors.unavailable import (
    ClientGoneError,
    NoClustersError,
    NoEndpointsError,
    QueueFullNoEndpointsError,
    QueueTimeoutNoEndpointsError,
    ScreenedOutError,
    ServiceUnavailableError,
    ShuttingDownError,
    StaleDataError,
    StartingError,
    SupersededError,
    TooManyBytesError,
    TooManyPendingError,
    TooManyStreamsError,
    UnavailableError,
)

__all__ = [
    "CONSTRAINT_CODES",
    "LATER_SECONDS",
    "SOON_SECONDS",
    "AdmissionDeniedError",
    "AllBusyError",
    "BadRequestError",
    "BadResponseError",
    "BodyMissingError",
    "BodyTimeoutError",
    "BodyTooLargeError",
    "ClientGoneError",
    "ConfigurationError",
    "EvictedError",
    "ForbiddenError",
    "HeadersTooLargeError",
    "InternalError",
    "MalformedBodyError",
    "ModelMissingError",
    "NoClustersError",
    "NoEndpointsError",
    "NoParserError",
    "NotFoundError",
    "OverQuotaError",
    "PluginFailedError",
    "PreconditionFailedError",
    "QueueFullError",
    "QueueFullNoEndpointsError",
    "QueueTimeoutError",
    "QueueTimeoutNoEndpointsError",
    "QuotaExceededError",
    "RequestError",
    "ResourceExhaustedError",
    "SaturatedError",
    "ScreenedOutError",
    "ServiceUnavailableError",
    "SheddableDroppedError",
    "ShuttingDownError",
    "StaleDataError",
    "StartingError",
    "SupersededError",
    "TargetMissedError",
    "TooManyBytesError",
    "TooManyPendingError",
    "TooManyStreamsError",
    "UnauthorizedError",
    "UnavailableError",
    "UnknownApiKeyError",
    "UnknownClientError",
    "UnmetConstraintError",
    "WithoutApiKeyError",
]
