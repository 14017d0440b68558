# SPDX-License-Identifier: Apache-2.0
"""Failures of the model server, of a plugin or of the picker, and rejections by an admitter."""

from epp.framework.errors.base import RequestError


class BadResponseError(RequestError):
    """The response of the model server has more header fields, or larger ones, than this picker reads."""

    status = 502
    code = "BadGateway"

    def __init__(self, most_fields: int, most_bytes: int) -> None:
        super().__init__("the model server gave a response that the gateway does not pass on")
        self.detail = f"more than {most_fields} header fields, or {most_bytes} bytes of them"


class InternalError(RequestError):
    """The picker, not the request, is at fault; only the operator is told how."""

    @property
    def message(self) -> str:
        """The same for all: causes are not for clients."""
        return "the gateway failed on this request: retry, and if it fails again, tell the operator of this service"


class PluginFailedError(InternalError):
    """A plugin raised, or returned something that cannot be used."""

    def __init__(self, plugin: str, problem: str) -> None:
        super().__init__(f"plugin {plugin!r} failed: {problem}")
        self.detail = f"plugin {plugin!r} failed"


class AdmissionDeniedError(RequestError):
    """An admission plugin said no; all but its message's beginning is that of its reason."""

    def __init__(self, cause: RequestError) -> None:
        super().__init__(f"request cannot be admitted: {cause.message}")
        self.status = cause.status
        self.code = cause.code
        self.reason = cause.reason
        self.param = cause.param
        self.kind = cause.kind
        self.detail = cause.detail
        self.retry_after_seconds = cause.retry_after_seconds
