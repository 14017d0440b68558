# SPDX-License-Identifier: Apache-2.0
"""The work of a simulated machine: requests and their progress, emitted tokens, synthetic load, steps."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec

from epp.lab.sim.kv_cache import BlockHash

FinishReason = Literal["stop", "length", "abort"]


class SimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request as the machine sees it.

    Attributes:
        request_id: unique in this machine, 0 or more.
        prompt_tokens: at least 1.
        output_tokens: length of the answer, at least 1.
        finish_reason: the reason for the end of the answer.
        block_hashes: chained hashes of all full blocks of prompt and output.
        transferred_tokens: leading prompt tokens whose KV cache came with the request from another server; the last
            token of a prompt is always computed here.
        lora_adapter: None for the base model.
    """

    request_id: int
    prompt_tokens: int
    output_tokens: int
    finish_reason: Literal["stop", "length"] = "stop"
    block_hashes: tuple[BlockHash, ...] = ()
    transferred_tokens: int = 0
    lora_adapter: str | None = None

    @property
    def kv_tokens(self) -> int:
        """Most tokens it has in the KV cache: the last output token is never fed back."""
        return self.prompt_tokens + self.output_tokens - 1


class Emission(msgspec.Struct, frozen=True):
    """One output token, number `index` from 0, at `at_seconds`; the last one has a finish reason.

    An aborted request gets one more emission, with the index of the missing token.
    """

    request_id: int
    index: int
    at_seconds: float
    cached_tokens: int
    finish_reason: FinishReason | None = None


class Occupation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Synthetic load, held until it is replaced.

    Attributes:
        running: requests in the batch; they slow every decode step.
        waiting: requests that only count in the gauge; others do not wait behind them.
        kv_usage: share of the KV cache in use by them, 0..1, rounded down to blocks.
        lora_adapter: the adapter of all of them; it takes a slot if any of them runs.
    """

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    lora_adapter: str | None = None


class OccupationError(ValueError):
    """The machine has no room for the synthetic load."""


@dataclass(slots=True)
class SimSequence:
    """A request with the progress that it has made."""

    request: SimRequest
    submitted_seconds: float
    known_tokens: int
    """Those of the prompt and of the answer so far."""
    last_tokens: int
    """Those of the prompt and the whole answer."""
    computed_tokens: int = 0
    cached_tokens: int = 0
    last_emission_seconds: float = 0.0

    @property
    def emitted_tokens(self) -> int:
        """Tokens of the answer so far."""
        return self.known_tokens - self.request.prompt_tokens

    @property
    def decodes(self) -> bool:
        """Whether only its last token has not been computed."""
        return self.known_tokens - self.computed_tokens == 1 and self.known_tokens > self.request.prompt_tokens


@dataclass(slots=True)
class SimStep:
    """Several equal steps, if all requests in the batch decode and only the last one ends any of them."""

    started_at: float
    seconds: float
    """Of one of them."""
    tokens: tuple[tuple[int, int], ...]
    """Request ids, and tokens to compute in each."""
    repeats: int = 1
    ends_at: float = field(init=False)

    def __post_init__(self) -> None:
        self.ends_at = self.started_at + self.repeats * self.seconds

    def done(self, now: float) -> int:
        """Return how many of the steps have ended, without the last one."""
        return min(self.repeats - 1, max(0, int((now - self.started_at) / self.seconds)))


class Workload(NamedTuple):
    """The requests that a machine has not finished."""

    step_seconds: float
    """Left of the step in progress."""
    decoding: Sequence[tuple[int, int]]
    """Of each request that decodes: tokens of its answer that are left, and its blocks of the cache."""
    computing: Sequence[tuple[int, int]]
    """Of each other request in the batch: tokens to compute before its next one, and those left of its answer."""
    waiting: Sequence[tuple[int, int]]
    """The same of each request in the queue."""
    free_blocks: int
