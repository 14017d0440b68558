# SPDX-License-Identifier: Apache-2.0
"""Decides whether the body of one response is to be shown, where the gateway lets the picker say so.

Envoy takes another mode with the answer to the response's headers, and ignores it with answers to bodies, where a body
is in full duplex, and unless its filter has `allow_mode_override`.
"""

from enum import StrEnum

from epp.extproc.modes import BodyMode, Modes


class ResponseUsage(StrEnum):
    """Whether tokens are counted in responses, for metrics and log lines."""

    AUTO = "auto"
    """Where the gateway shows their bodies."""
    ALWAYS = "always"
    """In all; the gateway is asked for bodies that it does not show."""
    NEVER = "never"
    """In none; the gateway is asked not to show bodies that nothing else needs."""


IN_PLACE = (BodyMode.STREAMED, BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL)
"""Modes in which each piece of a response gets one answer that may change it."""
_FIXED = (None, BodyMode.FULL_DUPLEX_STREAMED)
"""Modes beside which no other can be asked for."""


def response_mode(modes: Modes, *, needed: bool, read: bool) -> BodyMode | None:
    """Return the mode to ask for, or None to leave it: a body that is needed is shown, one that nobody reads is not."""
    if modes.request in _FIXED or modes.response in _FIXED:
        return None
    if modes.response is BodyMode.NONE:
        return BodyMode.STREAMED if needed else None
    return None if read else BodyMode.NONE
