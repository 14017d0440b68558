"""What goes into the simulated machine and what comes out of it."""

from typing import Literal

import msgspec

__all__ = ["Emission", "FinishReason", "Occupation", "OccupationError", "SimRequest"]

FinishReason = Literal["stop", "length", "abort"]


class SimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine has to know of a request.

    Attributes:
        request_id: unique in this machine, 0 or more.
        prompt_tokens: at least 1.
        output_tokens: at least 1; how many the answer will have.
        finish_reason: why it ends there.
        block_hashes: chained hashes of the full blocks of prompt and output, as many as there are.
        lora_adapter: the adapter it needs; None for the base model.
    """

    request_id: int
    prompt_tokens: int
    output_tokens: int
    finish_reason: Literal["stop", "length"] = "stop"
    block_hashes: tuple[bytes, ...] = ()
    lora_adapter: str | None = None

    @property
    def kv_tokens(self) -> int:
        """Most tokens it has in the KV cache: the last output token is never fed back."""
        return self.prompt_tokens + self.output_tokens - 1


class Emission(msgspec.Struct, frozen=True):
    """One output token, number `index` from 0, at `at_seconds`; the last one has a finish reason.

    An aborted request gets one more emission, with the index of the token that never came.
    """

    request_id: int
    index: int
    at_seconds: float
    cached_tokens: int
    finish_reason: FinishReason | None = None


class Occupation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Synthetic load, held until it is replaced.

    Attributes:
        running: requests that take a place in the batch, and so slow every decode step.
        waiting: requests that only stand in the gauge; nobody waits behind them.
        kv_usage: share of the KV cache they hold, 0..1, rounded down to blocks.
        lora_adapter: the adapter of all of them; it takes a slot while any of them runs.
    """

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    lora_adapter: str | None = None


class OccupationError(ValueError):
    """The machine has no room for the synthetic load asked for."""
