# SPDX-License-Identifier: Apache-2.0
"""What requests take while they are under way."""

from typing import NamedTuple


class Amounts(NamedTuple):
    """What one request takes, or several."""

    requests: int = 0
    tokens: float = 0.0
    """Of prompts, and those that may be generated."""
    accelerator_bytes: float = 0.0
    tflops: float = 0.0

    def plus(self, other: "Amounts") -> "Amounts":
        """Return the sum."""
        return Amounts(
            self.requests + other.requests,
            self.tokens + other.tokens,
            self.accelerator_bytes + other.accelerator_bytes,
            self.tflops + other.tflops,
        )


NOTHING = Amounts()


class Need(NamedTuple):
    """What a request would take, or takes."""

    under_way: Amounts
    minute_tokens: float
    """Tokens of its prompt, and those that it is expected to generate."""
    device_seconds: float
    """Expected, as is the price: those of the mean request of its tenant."""
    dollars: float
