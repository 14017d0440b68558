# SPDX-License-Identifier: Apache-2.0
"""The simulated machine: a queue, a batch and a KV cache that advance in virtual time, without I/O."""

import math
from collections.abc import Container, Iterable, Sequence
from itertools import accumulate

from epp.lab.sim.profile import SimProfile
from epp.lab.sim.work import (
    Emission,
    FinishReason,
    Found,
    KVCache,
    Occupation,
    OccupationError,
    SimRequest,
    SimSequence,
    SimStep,
)

_OCCUPATION_OWNER = -1


class MachineObserver:
    """No-op callbacks of a machine; override those you need. Times are in seconds."""

    __slots__ = ()

    def joined(self, prompt_tokens: int, cached_tokens: int) -> None:
        """Record a request that joins the batch."""

    def first_token(self, prompt_tokens: int, cached_tokens: int, seconds: float) -> None:
        """Record the first token of a request, `seconds` after its submission."""

    def further_token(self, seconds: float) -> None:
        """Record a further token, `seconds` after the one before."""

    def preempted(self) -> None:
        """Record a request that lost its blocks to others and will be computed again."""

    def ended(self, reason: FinishReason, seconds: float) -> None:
        """Record the end of a request, `seconds` after its submission."""

    def changed(self, machine: "Machine") -> None:
        """Record the current load."""


class Machine:
    """One server without its network. Its time is that of the last `advance`, and never decreases.

    A step computes one token for every request that decodes, and chunks of prompts, oldest request first, up to
    `max_num_batched_tokens`. It takes `prefill_step_seconds + uncached prompt tokens / prefill_tokens_per_second`
    if it computes any, plus `seconds_per_output_token * (1 + batch_slope * (n - 1))` when `n > 0` requests decode, plus
    `lora_load_seconds` for each adapter that is loaded for a request that joins, plus the time to copy its blocks in
    host memory, `tokens * kv_bytes_per_token / host_gbps`, and to read those on the disk at `disk_gbps`, times
    `time_scale`. With `attention_tokens`, a prompt token after `n` others counts as `1 + n / attention_tokens` tokens.
    Requests join only between steps, in order of arrival: a request whose prompt does not fit in the KV cache blocks
    those behind it, a request whose adapter has no slot does not. If an answer needs a block and none is free, the
    request that joined last is preempted: it loses its blocks and is the first to join again. Its prompt and its answer
    so far are then computed like a prompt, except for cached blocks.
    """

    def __init__(
        self,
        profile: SimProfile,
        *,
        now: float = 0.0,
        observer: MachineObserver | None = None,
        every_token: bool = True,
    ) -> None:
        """Without `every_token`, only first and last tokens are reported to the observer."""
        self.profile = profile
        self._every_token = every_token
        self.observer = observer or MachineObserver()
        self.cache = KVCache(profile.num_gpu_blocks, profile.num_host_blocks, profile.num_disk_blocks)
        self.now = now
        """Time of the last `advance`, in seconds."""
        self._waiting: dict[int, SimSequence] = {}
        self._running: dict[int, SimSequence] = {}
        self._step: SimStep | None = None
        self.occupation = Occupation()
        self._loaded: dict[str, None] = {}  # adapters, least recently used first
        self._more_blocks: list[int] = []
        """Additional blocks of the batch after 1, 2, ... of several equal steps; computed on first use."""
        self.adapter_loads = 0
        """Number of times that an adapter was loaded."""
        self.preemptions = 0
        """Number of preempted requests."""
        self.busy_seconds = 0.0
        """Total time with work."""
        self.observer.changed(self)

    @property
    def next_event_at(self) -> float | None:
        """End of the step in progress, or of the last one of several equal steps; None while the machine is idle."""
        return self._step.ends_at if self._step is not None else None

    @property
    def running(self) -> int:
        """Requests in the batch, synthetic ones included."""
        return len(self._running) + self.occupation.running

    @property
    def waiting(self) -> int:
        """Requests in the queue, synthetic ones included."""
        return len(self._waiting) + self.occupation.waiting

    def gauges(self) -> tuple[int, int, float]:
        """Return the running requests, the waiting requests and the share of KV blocks in use."""
        return self.running, self.waiting, self.kv_usage

    @property
    def kv_usage(self) -> float:
        """Share of KV blocks in use, 0..1."""
        step = self._step
        if step is None or step.repeats == 1 or not (done := step.done(self.now)):
            return self.cache.usage
        size, more = self.profile.block_size, self._more_blocks
        if not more:
            counts = [0] * size
            for sequence in self._running.values():
                counts[-(sequence.computed_tokens + 1) % size] += 1
            more += accumulate(counts)
        rounds, rest = divmod(done, size)
        grown = len(step.tokens) * rounds + (more[rest - 1] if rest else 0)
        return self.cache.usage + grown / self.profile.num_gpu_blocks

    @property
    def running_adapters(self) -> tuple[str, ...]:
        """Adapters that hold a slot, sorted."""
        held = [self.occupation.lora_adapter] if self.occupation.running else []
        return _sorted_names([*held, *(running.request.lora_adapter for running in self._running.values())])

    @property
    def waiting_adapters(self) -> tuple[str, ...]:
        """Adapters of the requests in the queue, sorted."""
        held = [self.occupation.lora_adapter] if self.occupation.waiting else []
        return _sorted_names([*held, *(waiting.request.lora_adapter for waiting in self._waiting.values())])

    def cached_tokens(self, request: SimRequest) -> int:
        return request.prompt_tokens - self.prompt_work(request)[0]

    def prompt_work(self, request: SimRequest) -> tuple[int, float]:
        """Return the prompt tokens to compute if the request joined now, and the seconds to copy cached blocks."""
        size, last = self.profile.block_size, request.prompt_tokens - 1
        found = self.cache.matched(request.block_hashes, min(last // size, len(request.block_hashes)))
        left = request.prompt_tokens - max(size * found.blocks, min(request.transferred_tokens, last))
        return left, self._copy_seconds(found)

    def _copy_seconds(self, found: Found) -> float:
        profile = self.profile
        block_bytes = profile.block_size * profile.kv_bytes_per_token
        copied, read = found.copied * block_bytes, found.read * block_bytes
        return copied / (profile.host_gbps * 1e9) + read / (profile.disk_gbps * 1e9)

    def seconds_to_end(self, request: SimRequest) -> float:
        """Return the seconds until the request would end if it arrived now and no other followed."""
        profile, step, size = self.profile, self._step, self.profile.block_size
        done = 0 if step is None else step.done(self.now)
        # Remaining answer tokens, and cache blocks, of each request that decodes.
        decoding: list[tuple[int, int]] = []
        # Tokens to compute before the next output, and remaining answer tokens, of each other request.
        computing: list[tuple[int, int]] = []
        for sequence in self._running.values():
            outputs = sequence.last_tokens - sequence.known_tokens - done
            if sequence.decodes:
                decoding.append((outputs, -(-(sequence.known_tokens + done) // size)))
            else:
                computing.append((sequence.known_tokens - sequence.computed_tokens, outputs))
        waiting = [
            (self.prompt_work(one.request)[0] + one.emitted_tokens, one.last_tokens - one.known_tokens)
            for one in self._waiting.values()
        ]
        ahead = computing + waiting
        places = len(decoding) + len(ahead) + 1 - profile.max_num_seqs
        blocks = self._blocks(request.prompt_tokens) + sum([self._blocks(tokens) for tokens, _ in waiting])
        blocks -= round((1 - self.kv_usage) * profile.num_gpu_blocks)
        wait, left = _wait(profile, decoding, places, blocks)
        own_tokens, copy = self.prompt_work(request)
        tokens = sum([each for each, _ in ahead]) + own_tokens
        chunks = math.ceil(tokens / max(1, profile.max_num_batched_tokens - len(left)))
        prefill = tokens / profile.prefill_tokens_per_second + chunks * profile.decode_seconds(len(left))
        own = request.output_tokens - 1
        beside = sum([min(outputs - chunks, own) for outputs in left if outputs > chunks])
        beside += sum([min(outputs, own) for _, outputs in ahead])
        answer = profile.seconds_per_output_token * (own + profile.batch_slope * beside)
        current = 0.0 if step is None else step.started_at + (done + 1) * step.seconds - self.now
        return current + profile.time_scale * (wait + copy + prefill + answer)

    def advance(self, now: float) -> list[Emission]:
        """Advance to `now` and return the emissions in order of time; raises ValueError if `now` is in the past."""
        if now < self.now:
            raise ValueError(f"time must not go back from {self.now} to {now} seconds")
        emissions: list[Emission] = []
        step = self._step
        if step is not None:
            self.busy_seconds += now - self.now
        while step is not None and step.ends_at <= now:
            self.now = step.ends_at
            emissions += self._finish(step, step.repeats)
            step = self._step = self._begin_step()
            self.observer.changed(self)
        self.now = now
        return emissions

    def submit(self, request: SimRequest) -> None:
        """Queue a request at the current time.

        Raises ValueError if the id is in use, there are no tokens, or the request is longer than `max_model_len`.
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
        self._waiting[request.request_id] = SimSequence(
            request, self.now, request.prompt_tokens, request.prompt_tokens + request.output_tokens
        )
        self._interrupt()

    def abort(self, request_id: int) -> Emission | None:
        """Remove a request and free its blocks; None if it is unknown or has finished."""
        sequence = self._running.get(request_id) or self._waiting.get(request_id)
        if sequence is None:
            return None
        if self._waiting.pop(request_id, None) is None:
            self._interrupt()
            del self._running[request_id]
            self.cache.release(request_id)
        emission = Emission(request_id, sequence.emitted_tokens, self.now, sequence.cached_tokens, "abort")
        self.observer.ended("abort", self.now - sequence.submitted_seconds)
        self._interrupt()
        return emission

    def occupy(self, occupation: Occupation) -> None:
        """Replace the synthetic load; `Occupation()` ends it.

        Raises OccupationError, without changes, if slots, blocks or the adapter are not available.
        """
        self._check_occupation(occupation)
        self._interrupt()
        if self.occupation.kv_usage:
            self.cache.release(_OCCUPATION_OWNER)
        if occupation.kv_usage and not self._hold_blocks(occupation.kv_usage):
            if self.occupation.kv_usage:
                self._hold_blocks(self.occupation.kv_usage)
            raise OccupationError(f"kv_usage {occupation.kv_usage} is more than the requests in flight leave free")
        self.occupation = occupation
        self._interrupt()

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
        return self.cache.admit(_OCCUPATION_OWNER, prefix=(), blocks=blocks) is not None

    def _interrupt(self) -> None:
        """End several equal steps with the current one, or start a step if the machine is idle."""
        step = self._step
        if step is None:
            self._step = self._begin_step()
        elif step.repeats > 1:
            done = step.done(self.now)
            if done:
                self._finish(step, done)
                self._grow_answers()
            self._step = SimStep(step.started_at + done * step.seconds, step.seconds, step.tokens)
        self.observer.changed(self)

    def _begin_step(self) -> SimStep | None:
        preempted = self._grow_answers()
        joining = 0.0 if preempted else self._admit_waiting()
        decoding: list[SimSequence] = []
        computing: list[SimSequence] = []
        for sequence in self._running.values():
            (decoding if sequence.decodes else computing).append(sequence)
        tokens = [(sequence.request.request_id, 1) for sequence in decoding]
        budget = self.profile.max_num_batched_tokens - len(decoding)
        attention, work = self.profile.attention_tokens, 0.0
        prefilled = 0
        for sequence in computing:
            chunk = min(budget - prefilled, sequence.known_tokens - sequence.computed_tokens)
            if chunk:
                tokens.append((sequence.request.request_id, chunk))
                prefilled += chunk
                if attention:
                    work += chunk * (sequence.computed_tokens + chunk / 2) / attention
        if not tokens:
            return None
        seconds = (prefilled + work) / self.profile.prefill_tokens_per_second + joining
        if prefilled:
            seconds += self.profile.prefill_step_seconds
        if decoding:
            seconds += self.profile.decode_seconds(len(decoding) + self.occupation.running)
        self._more_blocks = []
        # after a preemption, the next step may admit requests again
        repeats = 1 if self._every_token or prefilled or preempted else self._equal_steps(decoding)
        return SimStep(self.now, seconds * self.profile.time_scale, tuple(tokens), repeats)

    def _equal_steps(self, decoding: Sequence[SimSequence]) -> int:
        """Return the number of steps until a request ends, or needs a block while none is free."""
        steps = min([sequence.last_tokens - sequence.known_tokens for sequence in decoding])
        size, free, count = self.profile.block_size, self.cache.free_blocks, len(decoding)
        if free >= count * (steps // size + 1):
            return steps
        left = sorted(-(sequence.computed_tokens + 1) % size for sequence in decoding)
        return min(steps, 1 + left[free % count] + free // count * size)

    def _grow_answers(self) -> bool:
        """Give each request that decodes the block of its next token; return whether others were preempted for it.

        The request that joined last is preempted first, and returns to the head of the queue.
        """
        preempted, size = False, self.profile.block_size
        for sequence in list(self._running.values()):
            if (sequence.known_tokens - 1) % size or not sequence.decodes:
                continue  # only the first token of a block needs a new block
            request_id, blocks = sequence.request.request_id, self._blocks(sequence.known_tokens)
            while request_id in self._running and not self.cache.grow(request_id, blocks):
                last_id, last = self._running.popitem()
                self.cache.release(last_id)
                last.computed_tokens = 0
                self._waiting = {last_id: last, **self._waiting}
                self.preemptions += 1
                self.observer.preempted()
                preempted = True
        return preempted

    def _admit_waiting(self) -> float:
        """Admit waiting requests that fit; return the seconds to load their adapters and copy their blocks."""
        if not self._waiting or self.running >= self.profile.max_num_seqs:
            return 0.0
        adapters = set(self.running_adapters)
        seconds = 0.0
        for sequence in list(self._waiting.values()):
            if self.running >= self.profile.max_num_seqs:
                return seconds
            request = sequence.request
            adapter = request.lora_adapter
            if adapter is not None and adapter not in adapters and len(adapters) >= self.profile.max_lora:
                continue
            # At least one known token must be computed, to get the next output token.
            found = self.cache.admit(
                request.request_id,
                prefix=request.block_hashes[: (sequence.known_tokens - 1) // self.profile.block_size],
                blocks=self._blocks(sequence.known_tokens),
            )
            if found is None:
                return seconds
            if adapter is not None:
                adapters.add(adapter)
                seconds += self._load(adapter, in_use=adapters) * self.profile.lora_load_seconds
            seconds += self._copy_seconds(found)
            del self._waiting[request.request_id]
            self._running[request.request_id] = sequence
            sequence.computed_tokens = cached = found.blocks * self.profile.block_size
            if not sequence.emitted_tokens:
                sequence.cached_tokens = cached
                transferred = min(request.transferred_tokens, request.prompt_tokens - 1)
                if transferred > cached:
                    self._compute(sequence, transferred - cached)
                self.observer.joined(request.prompt_tokens, cached)
        return seconds

    def _load(self, adapter: str, in_use: Container[str]) -> bool:
        """Load an adapter unless it is loaded, replacing an unused one if necessary; return whether it was loaded."""
        missing = adapter not in self._loaded
        if missing and len(self._loaded) >= self.profile.max_lora:
            del self._loaded[next(name for name in self._loaded if name not in in_use)]
        self._loaded.pop(adapter, None)
        self._loaded[adapter] = None
        self.adapter_loads += missing
        return missing

    def _finish(self, step: SimStep, times: int) -> list[Emission]:
        """Compute the tokens of `times` equal steps."""
        emissions: list[Emission] = []
        running = self._running  # without those aborted during the step
        sequences = [(running[number], tokens * times) for number, tokens in step.tokens if number in running]
        if times > 1:
            size = self.profile.block_size
            for sequence, tokens in sequences:
                # all of them fit, before one ends and frees its blocks
                computed = sequence.computed_tokens
                if computed % size + tokens > size:
                    self.cache.grow(sequence.request.request_id, self._blocks(computed + tokens))
                sequence.known_tokens += tokens - 1
        for sequence, tokens in sequences:
            self._compute(sequence, tokens)
            known = sequence.known_tokens
            if sequence.computed_tokens != known:
                continue
            if self._every_token or known + 1 == sequence.last_tokens or known == sequence.request.prompt_tokens:
                self._emit(sequence, emissions)
            else:
                sequence.known_tokens += 1
        return emissions

    def _compute(self, sequence: SimSequence, tokens: int) -> None:
        size, before = self.profile.block_size, sequence.computed_tokens
        sequence.computed_tokens = after = before + tokens
        first, end = before // size, after // size
        if first < end:
            request = sequence.request
            self.cache.commit(request.request_id, first, request.block_hashes[first:end])

    def _emit(self, sequence: SimSequence, emissions: list[Emission]) -> None:
        request, index = sequence.request, sequence.emitted_tokens
        if index == 0:
            seconds = self.now - sequence.submitted_seconds
            self.observer.first_token(request.prompt_tokens, sequence.cached_tokens, seconds)
        elif self._every_token:
            self.observer.further_token(self.now - sequence.last_emission_seconds)
        sequence.known_tokens += 1
        sequence.last_emission_seconds = self.now
        reason = request.finish_reason if sequence.known_tokens == sequence.last_tokens else None
        if reason is not None:
            del self._running[request.request_id]
            self.cache.release(request.request_id)
            self.observer.ended(reason, self.now - sequence.submitted_seconds)
        emissions.append(Emission(request.request_id, index, self.now, sequence.cached_tokens, reason))

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.profile.block_size)


def _sorted_names(adapters: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(sorted({adapter for adapter in adapters if adapter is not None}))


def _wait(
    profile: SimProfile, decoding: Sequence[tuple[int, int]], places: int, blocks: int
) -> tuple[float, list[int]]:
    """Return the seconds until the missing places and blocks are free, and the answer tokens that remain then.

    `decoding` has the remaining answer tokens, and the blocks, of each request that decodes.
    """
    if places <= 0 and blocks <= 0:
        return 0.0, [outputs for outputs, _ in decoding]
    left = sorted(decoding, key=lambda one: -one[0])
    seconds, past = 0.0, 0
    while left and (places > 0 or blocks > 0):
        outputs, held = left.pop()
        seconds += (outputs - past) * profile.decode_seconds(len(left) + 1)
        past = outputs
        places -= 1
        blocks -= held
    return seconds, [outputs - past for outputs, _ in left]
