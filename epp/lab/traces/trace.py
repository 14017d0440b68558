# SPDX-License-Identifier: Apache-2.0
"""A trace: requests without their text, in order of time."""

from collections.abc import Iterator
from typing import Protocol

import msgspec


class TraceError(Exception):
    """A trace cannot be read or made; the message names the file, the place and the remedy."""


class TraceRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One request of a trace.

    Attributes:
        at: seconds since the start of the trace.
        prompt_tokens: at least 1.
        output_tokens: at least 1.
        model: name in the body; empty for the model of the servers.
        tenant: fairness id; empty for none.
        session: requests with the same session are turns of one conversation; empty for none.
        objective: name of the InferenceObjective; empty for none.
        blocks: an id of each full block of the prompt. Equal ids stand for equal tokens after an equal prefix. Empty
            if nothing is known of the prompt: it then shares no prefix with others.
        ttft_slo: longest time to the first token that is wanted, in seconds.
        tpot_slo: longest time between two tokens that is wanted, in seconds.
    """

    at: float
    prompt_tokens: int
    output_tokens: int
    model: str = ""
    tenant: str = ""
    session: str = ""
    objective: str = ""
    blocks: tuple[int, ...] = ()
    ttft_slo: float | None = None
    tpot_slo: float | None = None


class Trace(Protocol):
    """Requests in order of time; each iteration reads them from the start."""

    name: str
    block_tokens: int
    """Tokens of each block of `TraceRequest.blocks`."""

    def __iter__(self) -> Iterator[TraceRequest]: ...
