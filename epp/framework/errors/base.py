# SPDX-License-Identifier: Apache-2.0
"""Base of all request errors, and the retry time of transient ones."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # results know errors
    from epp.framework.result import FailedScheduling, ProfileAttempt

SOON_SECONDS = 1
"""What clients are told to wait for what passes by itself: for requests to end, or the next report."""
LATER_SECONDS = 5
"""The same for endpoints that have to start or recover."""


class RequestError(Exception):
    """A request cannot be routed, or not to its end; the caller gets `status` and `message`."""

    status: int = 500
    code: str = "Internal"
    reason: str | None = None
    """Value of the response header `x-llm-d-request-dropped-reason`, when there is one."""
    param: str | None = None
    """The part of the JSON body at fault, such as `messages[0].content`."""
    kind: str | None = None
    """Machine-readable cause; one of OpenAI's error codes."""
    llm_d_message: str = ""
    """The sentence that llm-d-router has for it, to the letter, since tools look for it; empty where it has none."""
    detail: str = ""
    """What the operator may know of it, and the client may not."""
    retry_after_seconds: int | None = None
    """Value of the response header `retry-after`; None where waiting is not known to help."""
    attempt: "ProfileAttempt | None" = None
    """How far the profile came that failed with it; None outside of profiles."""
    scheduling: "FailedScheduling | None" = None
    """How far the scheduling came that ended with it; None outside of it."""

    @property
    def message(self) -> str:
        """What is wrong and what to do, for the client."""
        return str(self)

    @property
    def sentence(self) -> str:
        """The message as llm-d-router sends it: `inference error: <Code> - <message>`."""
        return f"inference error: {self.code} - {self.llm_d_message or self.message}"
