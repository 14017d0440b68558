# SPDX-License-Identifier: Apache-2.0
"""What the mean request of a tenant takes, from those that have ended."""

from epp.framework.rates import DEFAULT_OUTPUT_TOKENS

_MOST = 64
"""Requests that a mean looks back on: it follows a tenant who changes."""
_MOST_OUTPUT_TOKENS = 2**24


class Means:
    """Running means; an answer has a usual length before any has been seen, and time and price are 0."""

    __slots__ = ("_answers", "_requests", "device_seconds", "dollars", "output_tokens", "seconds")

    def __init__(self) -> None:
        self.output_tokens = DEFAULT_OUTPUT_TOKENS
        self.seconds = 0.0
        """Of the endpoint's time, which requests there share."""
        self.device_seconds = 0.0
        self.dollars = 0.0
        self._answers = 0
        self._requests = 0

    def answered(self, output_tokens: int) -> None:
        """Add the length of an answer, as a model server says it."""
        self._answers = min(self._answers + 1, _MOST)
        tokens = min(max(output_tokens, 0), _MOST_OUTPUT_TOKENS)
        self.output_tokens += (tokens - self.output_tokens) / self._answers

    def ended(self, seconds: float, device_seconds: float, dollars: float) -> None:
        """Add what a request has taken in all."""
        self._requests = min(self._requests + 1, _MOST)
        share = 1.0 / self._requests
        self.seconds += (seconds - self.seconds) * share
        self.device_seconds += (device_seconds - self.device_seconds) * share
        self.dollars += (dollars - self.dollars) * share
