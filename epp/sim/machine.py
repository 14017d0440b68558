"""The simulated machine: a queue, a batch and a KV cache that move in steps of virtual time, without I/O."""

from collections.abc import Iterable
from dataclasses import dataclass

from epp.sim.kv_cache import KVCache
from epp.sim.meters import Meters
from epp.sim.profile import SimProfile
from epp.sim.records import Emission, Occupation, OccupationError, SimRequest

__all__ = ["Machine"]

_OCCUPATION_OWNER = -1
_TICK_SECONDS = 1e-6


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
    tokens: tuple[tuple[int, int], ...]  # (request id, tokens of it that the step computes)


class Machine:
    """One server without its network. Time is whatever `advance` was last told, and never runs back.

    A step computes one token for every request that decodes, and chunks of prompts, oldest request first, up to
    `max_num_batched_tokens`. It takes `uncached prompt tokens / prefill_tokens_per_second`, plus
    `seconds_per_output_token * (1 + batch_slope * (n - 1))` when `n > 0` requests decode, times `time_scale`.
    Requests join only between steps, in order of arrival: one whose worst case does not fit in the KV cache holds up
    those behind it, one whose adapter has no slot does not. Nothing that runs is ever preempted.
    """

    def __init__(self, profile: SimProfile, *, now: float = 0.0) -> None:
        self.profile = profile
        self.meters = Meters()
        self._cache = KVCache(profile.num_gpu_blocks)
        self._now = now
        self._waiting: dict[int, tuple[SimRequest, float]] = {}
        self._running: dict[int, _Running] = {}
        self._step: _Step | None = None
        self._occupation = Occupation()
        self._lora_series: dict[tuple[str, str], float] = {}
        self._last_lora_stamp = now
        self._stamp_lora_series()

    @property
    def now(self) -> float:
        """The time of the last `advance`, in seconds."""
        return self._now

    @property
    def next_event_at(self) -> float | None:
        """When the step in progress ends; None while the machine is idle."""
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
    def occupation(self) -> Occupation:
        """The synthetic load held now."""
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

    @property
    def lora_series(self) -> dict[tuple[str, str], float]:
        """When each pair of running and waiting adapters (joined with commas) was last the true one, in seconds.

        No two have the same time, so the newest one is the present state.
        """
        return dict(self._lora_series)

    def advance(self, now: float) -> list[Emission]:
        """Let time pass until `now` and return what came out, in order of time; `ValueError` if time runs back."""
        if now < self._now:
            raise ValueError(f"time runs back from {self._now} to {now} seconds")
        emissions: list[Emission] = []
        while self._step is not None and self._step.ends_at <= now:
            self._now = self._step.ends_at
            emissions += self._finish(self._step)
            self._step = self._begin_step()
            self._stamp_lora_series()
        self._now = now
        return emissions

    def submit(self, request: SimRequest) -> None:
        """Queue a request at the present time.

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
        """Forget a request and free what it holds; None when it is unknown or has finished."""
        if self._waiting.pop(request_id, None) is not None:
            emission = Emission(request_id, 0, self._now, 0, "abort")
        elif (running := self._running.pop(request_id, None)) is not None:
            self._cache.release(request_id)
            emission = Emission(request_id, running.emitted_tokens, self._now, running.cached_tokens, "abort")
        else:
            return None
        self.meters.finished["abort"] += 1
        self._start_if_idle()
        return emission

    def occupy(self, occupation: Occupation) -> None:
        """Replace the synthetic load; `Occupation()` ends it.

        `OccupationError`, changing nothing, when slots, blocks or the adapter are not to be had now.
        """
        self._check_occupation(occupation)
        if self._occupation.kv_usage:
            self._cache.release(_OCCUPATION_OWNER)
        if occupation.kv_usage and not self._hold_blocks(occupation.kv_usage):
            if self._occupation.kv_usage:
                self._hold_blocks(self._occupation.kv_usage)
            raise OccupationError(f"kv_usage {occupation.kv_usage} is more than the requests in flight leave free")
        self._occupation = occupation
        self._start_if_idle()

    def _check_occupation(self, wanted: Occupation) -> None:
        slots = self.profile.max_num_seqs - len(self._running)
        if not 0 <= wanted.running <= slots:
            raise OccupationError(f"running {wanted.running} must be 0 to {slots}, the slots that are free")
        if wanted.waiting < 0:
            raise OccupationError(f"waiting {wanted.waiting} must be 0 or more")
        if not 0 <= wanted.kv_usage <= 1:
            raise OccupationError(f"kv_usage {wanted.kv_usage} must be 0 to 1")
        if wanted.lora_adapter is None:
            return
        if wanted.lora_adapter not in self.profile.lora_adapters:
            raise OccupationError(f"lora_adapter {wanted.lora_adapter!r} is none of {self.profile.lora_adapters}")
        names = _sorted_names([wanted.lora_adapter, *(item.request.lora_adapter for item in self._running.values())])
        if wanted.running and len(names) > self.profile.max_lora:
            raise OccupationError(f"lora_adapter {wanted.lora_adapter!r} finds no free slot of {self.profile.max_lora}")

    def _hold_blocks(self, kv_usage: float) -> bool:
        blocks = int(kv_usage * self.profile.num_gpu_blocks)
        return self._cache.admit(_OCCUPATION_OWNER, prefix=(), first_blocks=blocks, total_blocks=blocks) is not None

    def _start_if_idle(self) -> None:
        if self._step is None:
            self._step = self._begin_step()
        self._stamp_lora_series()

    def _begin_step(self) -> _Step | None:
        self._admit_waiting()
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
        seconds = prefilled / self.profile.prefill_tokens_per_second
        if decoding:
            batch = len(decoding) + self._occupation.running
            seconds += self.profile.seconds_per_output_token * (1 + self.profile.batch_slope * (batch - 1))
        return _Step(ends_at=self._now + seconds * self.profile.time_scale, tokens=tuple(tokens))

    def _admit_waiting(self) -> None:
        adapters = set(self.running_adapters)
        for request, submitted_seconds in list(self._waiting.values()):
            if self.running >= self.profile.max_num_seqs:
                return
            adapter = request.lora_adapter
            if adapter is not None and adapter not in adapters and len(adapters) >= self.profile.max_lora:
                continue
            # At least one prompt token is computed, for only that gives the first output token.
            shareable = request.block_hashes[: (request.prompt_tokens - 1) // self.profile.block_size]
            hits = self._cache.admit(
                request.request_id,
                prefix=shareable,
                first_blocks=self._blocks(request.prompt_tokens),
                total_blocks=self._blocks(request.kv_tokens),
            )
            if hits is None:
                return
            if adapter is not None:
                adapters.add(adapter)
            del self._waiting[request.request_id]
            cached = hits * self.profile.block_size
            self._running[request.request_id] = _Running(request, submitted_seconds, cached, cached)
            self.meters.prefix_query_tokens += request.prompt_tokens
            self.meters.prefix_hit_tokens += cached

    def _finish(self, step: _Step) -> list[Emission]:
        emissions: list[Emission] = []
        for request_id, tokens in step.tokens:
            running = self._running.get(request_id)
            if running is None:  # aborted while the step was under way
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
            self.meters.inter_token_latency.observe(self._now - running.last_emission_seconds)
        else:
            self.meters.prompt_tokens += request.prompt_tokens
            self.meters.cached_prompt_tokens += running.cached_tokens
            self.meters.time_to_first_token.observe(self._now - running.submitted_seconds)
        index = running.emitted_tokens
        running.emitted_tokens += 1
        running.last_emission_seconds = self._now
        self.meters.generation_tokens += 1
        reason = request.finish_reason if running.emitted_tokens == request.output_tokens else None
        if reason is not None:
            del self._running[request.request_id]
            self._cache.release(request.request_id)
            self.meters.finished[reason] += 1
            self.meters.request_latency.observe(self._now - running.submitted_seconds)
        return Emission(request.request_id, index, self._now, running.cached_tokens, reason)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.profile.block_size)

    def _stamp_lora_series(self) -> None:
        self._last_lora_stamp = max(self._now, self._last_lora_stamp + _TICK_SECONDS)
        series = (",".join(self.running_adapters), ",".join(self.waiting_adapters))
        self._lora_series[series] = self._last_lora_stamp


def _sorted_names(adapters: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(sorted({adapter for adapter in adapters if adapter is not None}))
