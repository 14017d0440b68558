# SPDX-License-Identifier: Apache-2.0
"""The simulated machine: a queue, a batch and a KV cache that advance in virtual time, without I/O."""

from collections.abc import Container, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

import msgspec

from epp.lab.sim.kv_cache import KVCache
from epp.lab.sim.profile import SimProfile

_OCCUPATION_OWNER = -1

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
    block_hashes: tuple[bytes, ...] = ()
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
class _Running:
    request: SimRequest
    submitted_seconds: float
    computed_tokens: int
    cached_tokens: int
    emitted_tokens: int = 0
    last_emission_seconds: float = 0.0

    @property
    def decodes(self) -> bool:
        return self.emitted_tokens > 0


@dataclass(slots=True, frozen=True)
class _Step:
    ends_at: float
    tokens: tuple[tuple[int, int], ...]  # (request id, tokens to compute)


class MachineObserver:
    """No-op callbacks of a machine; override those of interest. Times are in seconds."""

    __slots__ = ()

    def joined(self, prompt_tokens: int, cached_tokens: int) -> None:
        """Record a request that joins the batch."""

    def first_token(self, prompt_tokens: int, cached_tokens: int, seconds: float) -> None:
        """Record the first token of a request, `seconds` after its submission."""

    def further_token(self, seconds: float) -> None:
        """Record a further token, `seconds` after the one before."""

    def ended(self, reason: FinishReason, seconds: float) -> None:
        """Record the end of a request, `seconds` after its submission."""

    def changed(self, machine: "Machine") -> None:
        """Record the current load."""


class Machine:
    """One server without its network. Time is that of the last `advance`, and never runs back.

    A step computes one token for every request that decodes, and chunks of prompts, oldest request first, up to
    `max_num_batched_tokens`. It takes `prefill_step_seconds + uncached prompt tokens / prefill_tokens_per_second`
    if it computes any, plus `seconds_per_output_token * (1 + batch_slope * (n - 1))` when `n > 0` requests decode, plus
    `lora_load_seconds` for each adapter that is loaded for a request that joins, times `time_scale`.
    Requests join only between steps, in order of arrival: one whose worst case does not fit in the KV cache blocks
    those behind it, one whose adapter has no slot does not. A running request is never preempted.
    """

    def __init__(self, profile: SimProfile, *, now: float = 0.0, observer: MachineObserver | None = None) -> None:
        self.profile = profile
        self.observer = observer or MachineObserver()
        self._cache = KVCache(profile.num_gpu_blocks)
        self._now = now
        self._waiting: dict[int, tuple[SimRequest, float]] = {}
        self._running: dict[int, _Running] = {}
        self._step: _Step | None = None
        self._occupation = Occupation()
        self._loaded: dict[str, None] = {}  # adapters, the one used last at the end
        self.adapter_loads = 0
        """Adapters loaded so far, each time counted."""
        self.observer.changed(self)

    @property
    def now(self) -> float:
        """Time of the last `advance`, in seconds."""
        return self._now

    @property
    def next_event_at(self) -> float | None:
        """End of the step in progress; None while the machine is idle."""
        return self._step.ends_at if self._step is not None else None

    @property
    def running(self) -> int:
        """Requests in the batch, synthetic ones included."""
        return len(self._running) + self._occupation.running

    @property
    def waiting(self) -> int:
        """Requests in the queue, synthetic ones included."""
        return len(self._waiting) + self._occupation.waiting

    @property
    def kv_usage(self) -> float:
        """The share of KV blocks in use, 0..1."""
        return self._cache.usage

    @property
    def cached_hashes(self) -> AbstractSet[bytes]:
        """Prefix hashes of the blocks in the KV cache."""
        return self._cache.hashes

    @property
    def occupation(self) -> Occupation:
        """The current synthetic load."""
        return self._occupation

    @property
    def running_adapters(self) -> tuple[str, ...]:
        """Adapters that hold a slot, sorted."""
        held = [self._occupation.lora_adapter] if self._occupation.running else []
        return _sorted_names([*held, *(running.request.lora_adapter for running in self._running.values())])

    @property
    def waiting_adapters(self) -> tuple[str, ...]:
        """Adapters of the requests in the queue, sorted."""
        held = [self._occupation.lora_adapter] if self._occupation.waiting else []
        return _sorted_names([*held, *(request.lora_adapter for request, _ in self._waiting.values())])

    def advance(self, now: float) -> list[Emission]:
        """Let time pass until `now` and return the emissions in order of time; `ValueError` if time runs back."""
        if now < self._now:
            raise ValueError(f"time runs back from {self._now} to {now} seconds")
        emissions: list[Emission] = []
        while self._step is not None and self._step.ends_at <= now:
            self._now = self._step.ends_at
            emissions += self._finish(self._step)
            self._step = self._begin_step()
            self.observer.changed(self)
        self._now = now
        return emissions

    def submit(self, request: SimRequest) -> None:
        """Queue a request at the current time.

        `ValueError` for an id that is in use, for no tokens, and for a request longer than `max_model_len`.
        """
        if request.request_id < 0 or request.request_id in self._waiting or request.request_id in self._running:
            raise ValueError(f"request id {request.request_id} is negative or in use")
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise ValueError(f"request {request.request_id} needs at least one prompt token and one output token")
        if request.prompt_tokens + request.output_tokens > self.profile.max_model_len:
            raise ValueError(
                f"request {request.request_id} has {request.prompt_tokens} prompt and {request.output_tokens} output "
                f"tokens, together more than max_model_len {self.profile.max_model_len}"
            )
        self._waiting[request.request_id] = (request, self._now)
        self._start_if_idle()

    def abort(self, request_id: int) -> Emission | None:
        """Remove a request and free its blocks; None when it is unknown or has finished."""
        if (waiting := self._waiting.pop(request_id, None)) is not None:
            submitted_seconds = waiting[1]
            emission = Emission(request_id, 0, self._now, 0, "abort")
        elif (running := self._running.pop(request_id, None)) is not None:
            submitted_seconds = running.submitted_seconds
            self._cache.release(request_id)
            emission = Emission(request_id, running.emitted_tokens, self._now, running.cached_tokens, "abort")
        else:
            return None
        self.observer.ended("abort", self._now - submitted_seconds)
        self._start_if_idle()
        return emission

    def occupy(self, occupation: Occupation) -> None:
        """Replace the synthetic load; `Occupation()` ends it.

        `OccupationError`, with nothing changed, when slots, blocks or the adapter are not available.
        """
        self._check_occupation(occupation)
        if self._occupation.kv_usage:
            self._cache.release(_OCCUPATION_OWNER)
        if occupation.kv_usage and not self._hold_blocks(occupation.kv_usage):
            if self._occupation.kv_usage:
                self._hold_blocks(self._occupation.kv_usage)
            raise OccupationError(f"kv_usage {occupation.kv_usage} is more than is free besides the requests in flight")
        self._occupation = occupation
        self._start_if_idle()

    def _check_occupation(self, wanted: Occupation) -> None:
        slots = self.profile.max_num_seqs - len(self._running)
        if not 0 <= wanted.running <= slots:
            raise OccupationError(f"running {wanted.running} must be 0 to {slots}, the number of free slots")
        if wanted.waiting < 0:
            raise OccupationError(f"waiting {wanted.waiting} must be 0 or more")
        if not 0 <= wanted.kv_usage <= 1:
            raise OccupationError(f"kv_usage {wanted.kv_usage} must be 0 to 1")
        if wanted.lora_adapter is None:
            return
        if wanted.lora_adapter not in self.profile.lora_adapters:
            raise OccupationError(f"lora_adapter {wanted.lora_adapter!r} is not one of {self.profile.lora_adapters}")
        names = _sorted_names([wanted.lora_adapter, *(item.request.lora_adapter for item in self._running.values())])
        if wanted.running and len(names) > self.profile.max_lora:
            raise OccupationError(
                f"lora_adapter {wanted.lora_adapter!r} has no free slot: max_lora is {self.profile.max_lora}"
            )

    def _hold_blocks(self, kv_usage: float) -> bool:
        blocks = int(kv_usage * self.profile.num_gpu_blocks)
        return self._cache.admit(_OCCUPATION_OWNER, prefix=(), first_blocks=blocks, total_blocks=blocks) is not None

    def _start_if_idle(self) -> None:
        if self._step is None:
            self._step = self._begin_step()
        self.observer.changed(self)

    def _begin_step(self) -> _Step | None:
        loads = self._admit_waiting()
        decoding = [running for running in self._running.values() if running.decodes]
        for running in decoding:
            self._cache.grow(running.request.request_id, self._blocks(running.computed_tokens + 1))
        tokens = [(running.request.request_id, 1) for running in decoding]
        budget = self.profile.max_num_batched_tokens - len(decoding)
        for running in self._running.values():
            chunk = 0 if running.decodes else min(budget, running.request.prompt_tokens - running.computed_tokens)
            if chunk:
                tokens.append((running.request.request_id, chunk))
                budget -= chunk
        if not tokens:
            return None
        prefilled = self.profile.max_num_batched_tokens - len(decoding) - budget
        seconds = prefilled / self.profile.prefill_tokens_per_second + loads * self.profile.lora_load_seconds
        if prefilled:
            seconds += self.profile.prefill_step_seconds
        if decoding:
            batch = len(decoding) + self._occupation.running
            seconds += self.profile.seconds_per_output_token * (1 + self.profile.batch_slope * (batch - 1))
        return _Step(ends_at=self._now + seconds * self.profile.time_scale, tokens=tuple(tokens))

    def _admit_waiting(self) -> int:
        """Let waiting requests join, as many as there is room for; return the number of adapters that are loaded."""
        adapters = set(self.running_adapters)
        loads = 0
        for request, submitted_seconds in list(self._waiting.values()):
            if self.running >= self.profile.max_num_seqs:
                return loads
            adapter = request.lora_adapter
            if adapter is not None and adapter not in adapters and len(adapters) >= self.profile.max_lora:
                continue
            # At least one prompt token must be computed: that gives the first output token.
            shareable = request.block_hashes[: (request.prompt_tokens - 1) // self.profile.block_size]
            hits = self._cache.admit(
                request.request_id,
                prefix=shareable,
                first_blocks=self._blocks(request.prompt_tokens),
                total_blocks=self._blocks(request.kv_tokens),
            )
            if hits is None:
                return loads
            if adapter is not None:
                adapters.add(adapter)
                loads += self._load(adapter, in_use=adapters)
            del self._waiting[request.request_id]
            cached = hits * self.profile.block_size
            self._running[request.request_id] = running = _Running(request, submitted_seconds, cached, cached)
            transferred = min(request.transferred_tokens, request.prompt_tokens - 1)
            if transferred > cached:
                self._compute(running, transferred - cached)
            self.observer.joined(request.prompt_tokens, cached)
        return loads

    def _load(self, adapter: str, in_use: Container[str]) -> bool:
        """Load an adapter that is not loaded, in place of one out of use; return whether that was so."""
        missing = adapter not in self._loaded
        if missing and len(self._loaded) >= self.profile.max_lora:
            del self._loaded[next(name for name in self._loaded if name not in in_use)]
        self._loaded.pop(adapter, None)
        self._loaded[adapter] = None
        self.adapter_loads += missing
        return missing

    def _finish(self, step: _Step) -> list[Emission]:
        emissions: list[Emission] = []
        for request_id, tokens in step.tokens:
            running = self._running.get(request_id)
            if running is None:  # aborted during the step
                continue
            self._compute(running, tokens)
            if running.computed_tokens >= running.request.prompt_tokens:
                emissions.append(self._emit(running))
        return emissions

    def _compute(self, running: _Running, tokens: int) -> None:
        size = self.profile.block_size
        full_before = running.computed_tokens // size
        running.computed_tokens += tokens
        for index in range(full_before, running.computed_tokens // size):
            if index < len(running.request.block_hashes):
                self._cache.commit(running.request.request_id, index, running.request.block_hashes[index])

    def _emit(self, running: _Running) -> Emission:
        request = running.request
        if running.decodes:
            self.observer.further_token(self._now - running.last_emission_seconds)
        else:
            seconds = self._now - running.submitted_seconds
            self.observer.first_token(request.prompt_tokens, running.cached_tokens, seconds)
        index = running.emitted_tokens
        running.emitted_tokens += 1
        running.last_emission_seconds = self._now
        reason = request.finish_reason if running.emitted_tokens == request.output_tokens else None
        if reason is not None:
            del self._running[request.request_id]
            self._cache.release(request.request_id)
            self.observer.ended(reason, self._now - running.submitted_seconds)
        return Emission(request.request_id, index, self._now, running.cached_tokens, reason)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.profile.block_size)


def _sorted_names(adapters: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(sorted({adapter for adapter in adapters if adapter is not None}))
