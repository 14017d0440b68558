# SPDX-License-Identifier: Apache-2.0
"""Error codes of HTTP/2, and the two ways in which a peer can break its rules."""

from enum import IntEnum


class ErrorCode(IntEnum):
    """RFC 9113, section 7."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class GoawayError(Exception):
    """The connection ends with GOAWAY."""

    def __init__(self, code: ErrorCode, problem: str) -> None:
        super().__init__(problem)
        self.code = code


class ResetError(Exception):
    """One stream ends with RST_STREAM."""

    def __init__(self, stream_id: int, code: ErrorCode, problem: str) -> None:
        super().__init__(problem)
        self.stream_id = stream_id
        self.code = code
