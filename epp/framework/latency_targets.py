# SPDX-License-Identifier: Apache-2.0
"""Latency targets that a request brings along in its headers."""

from math import inf

from epp.framework.candidates import Candidates
from epp.framework.headers import SLO_TTFT_MS
from epp.framework.request import Headers, Request

_MS = 1e-3


def target_seconds(headers: Headers, names: tuple[str, ...], default_ms: float = 0.0) -> float:
    """Return a target in seconds, infinite for none; one that is no number above 0 stands for the default."""
    text = headers.first_of(*names)
    try:
        milliseconds = 0.0 if text is None else float(text)
    except ValueError:
        milliseconds = 0.0
    if not milliseconds > 0:
        milliseconds = default_ms
    return milliseconds * _MS if milliseconds > 0 else inf


def waited_seconds(request: Request, candidates: Candidates) -> float:
    """Return how long ago a request came; 0 where the candidates know no time."""
    waited = candidates.now - request.received_at
    return waited if waited > 0 else 0.0


def ttft_target_seconds(headers: Headers) -> float:
    """Return the longest time to the first token that a request wants; infinite for none."""
    return target_seconds(headers, SLO_TTFT_MS)
