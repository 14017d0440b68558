# SPDX-License-Identifier: Apache-2.0
"""Kinds of engines: the simulated vLLM with different profiles, and one whose requests do not slow each other down."""

import math
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from epp.lab.replay.fleet import simulated
from epp.lab.sim.machine import Machine
from epp.lab.sim.profile import SimProfile
from epp.lab.sim.work import Emission, SimRequest

_BIGGEST_STEP = 131_072


class _Job(msgspec.Struct):
    request: SimRequest
    ends_at: float
    first_at: float | None


class Independent(Machine):
    """An engine whose requests do not slow each other down: each occupies one of a few slots.

    Simulators that sleep for a configured time behave like this; their load is visible only in the queue.
    """

    def __init__(self, profile: SimProfile) -> None:
        super().__init__(profile)
        self._queue: deque[SimRequest] = deque()
        self._jobs: dict[int, _Job] = {}
        self._held: dict[bytes | int, None] = {}

    @property
    def next_event_at(self) -> float | None:
        return min((job.first_at or job.ends_at for job in self._jobs.values()), default=None)

    def advance(self, now: float) -> list[Emission]:
        events: list[Emission] = []
        while (due := self.next_event_at) is not None and due <= now:
            self._pass(due)
            for number, job in list(self._jobs.items()):
                if job.first_at is not None and job.first_at <= due:
                    job.first_at = None
                    events.append(Emission(number, 0, due, 0, "stop" if job.ends_at <= due else None))
                elif job.ends_at <= due and job.first_at is None:
                    events.append(Emission(number, 1, due, 0, "stop"))
                if job.first_at is None and job.ends_at <= due:
                    self._complete(number)
        self._pass(now)
        return events

    def submit(self, request: SimRequest) -> None:
        self._queue.append(request)
        self._start()

    def abort(self, request_id: int) -> None:
        self._queue = deque(one for one in self._queue if one.request_id != request_id)
        if self._jobs.pop(request_id, None) is not None:
            self._start()

    def seconds_to_end(self, _request: SimRequest) -> float:
        """Return NaN: such engines have no forecast."""
        return math.nan

    def gauges(self) -> tuple[int, int, float]:
        tokens = sum(job.request.kv_tokens for job in self._jobs.values())
        room = self.profile.block_size * self.profile.num_gpu_blocks
        return len(self._jobs), len(self._queue), min(1.0, tokens / room)

    def _pass(self, now: float) -> None:
        if self._jobs:
            self.busy_seconds += now - self.now
        self.now = now

    def _complete(self, number: int) -> None:
        request = self._jobs.pop(number).request
        for block in request.block_hashes:
            self._held.pop(block, None)
            self._held[block] = None
        while len(self._held) > self.profile.num_gpu_blocks:
            del self._held[next(iter(self._held))]
        self._start()

    def _start(self) -> None:
        while self._queue and len(self._jobs) < self.profile.max_num_seqs:
            request = self._queue.popleft()
            hits = 0
            for block in request.block_hashes[: (request.prompt_tokens - 1) // self.profile.block_size]:
                if block not in self._held:
                    break
                hits += 1
            transferred = min(request.transferred_tokens, request.prompt_tokens - 1)
            uncached = request.prompt_tokens - max(hits * self.profile.block_size, transferred)
            first_at = self.now + uncached / self.profile.prefill_tokens_per_second
            ends_at = first_at + (request.output_tokens - 1) * self.profile.seconds_per_output_token
            self._jobs[request.request_id] = _Job(request, ends_at, first_at)


class Make(NamedTuple):
    """A kind of engine, and its changes of the presets."""

    engine: Callable[[SimProfile], Machine]
    adapt: Callable[[SimProfile], SimProfile] = lambda profile: profile


def _whole_prompts(profile: SimProfile) -> SimProfile:
    """Compute all waiting prompts in one step, instead of in chunks."""
    return msgspec.structs.replace(profile, max_num_batched_tokens=_BIGGEST_STEP)


def _large_blocks(profile: SimProfile) -> SimProfile:
    return msgspec.structs.replace(profile, block_size=128, num_gpu_blocks=profile.num_gpu_blocks // 8)


def _few_places(profile: SimProfile) -> SimProfile:
    return msgspec.structs.replace(profile, max_num_seqs=8)


def _small_batches(profile: SimProfile) -> SimProfile:
    return msgspec.structs.replace(profile, max_num_seqs=16)


def _twice(profile: SimProfile, factor: float = 2.0) -> SimProfile:
    return msgspec.structs.replace(
        profile,
        prefill_tokens_per_second=profile.prefill_tokens_per_second * factor,
        seconds_per_output_token=profile.seconds_per_output_token / factor,
    )


def _half(profile: SimProfile) -> SimProfile:
    return _twice(profile, 0.5)


MAKES: Mapping[str, Make] = MappingProxyType(
    {
        "vllm": Make(simulated),
        "twice-as-fast": Make(simulated, _twice),
        "half-as-fast": Make(simulated, _half),
        "whole-prompts": Make(simulated, _whole_prompts),
        "small-batches": Make(simulated, _small_batches),
        "large-blocks": Make(simulated, _large_blocks),
        "independent": Make(Independent, _few_places),
    }
)
"""Kinds of engines by name: that of the presets, others with another calibration or design, and one that only waits."""
