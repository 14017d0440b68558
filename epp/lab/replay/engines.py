# SPDX-License-Identifier: Apache-2.0
"""Machines or model servers that answer replayed requests, and how long a request would take on a machine."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Self

from epp.lab.sim.kv_cache import KVChanges
from epp.lab.sim.machine import Machine
from epp.lab.sim.profile import SimProfile
from epp.lab.sim.work import SimRequest, Workload


def seconds_to_end(machine: Machine, request: SimRequest) -> float:
    """Return the seconds until the request would end if it came to the machine now, and none after it."""
    profile, load = machine.profile, machine.workload()
    wait, left = _wait(profile, load, request)
    ahead = (*load.computing, *load.waiting)
    tokens = sum([each for each, _ in ahead]) + machine.uncached_tokens(request)
    chunks = math.ceil(tokens / max(1, profile.max_num_batched_tokens - len(left)))
    prefill = tokens / profile.prefill_tokens_per_second + chunks * _decode_seconds(profile, len(left))
    own = request.output_tokens - 1
    beside = sum([min(outputs - chunks, own) for outputs in left if outputs > chunks])
    beside += sum([min(outputs, own) for _, outputs in ahead])
    answer = profile.seconds_per_output_token * (own + profile.batch_slope * beside)
    copy = machine.copy_seconds(request)
    return load.step_seconds + profile.time_scale * (wait + copy + prefill + answer)


def _wait(profile: SimProfile, load: Workload, request: SimRequest) -> tuple[float, Sequence[int]]:
    """Return the seconds until there is room for the request and those ahead, and the tokens of answers left then."""
    blocks = -(-request.prompt_tokens // profile.block_size)
    blocks += sum([-(-tokens // profile.block_size) for tokens, _ in load.waiting])
    places = len(load.decoding) + len(load.computing) + len(load.waiting) + 1
    free, seconds, past = load.free_blocks, 0.0, 0
    if places <= profile.max_num_seqs and blocks <= free:
        return 0.0, [outputs for outputs, _ in load.decoding]
    left: list[tuple[int, int]] = sorted(load.decoding, key=lambda one: -one[0])
    while left and (places > profile.max_num_seqs or blocks > free):
        outputs, held = left.pop()
        seconds += (outputs - past) * _decode_seconds(profile, len(left) + 1)
        past = outputs
        places -= 1
        free += held
    return seconds, [outputs - past for outputs, _ in left]


def _decode_seconds(profile: SimProfile, count: int) -> float:
    """Return the duration of a step in which so many requests decode."""
    return profile.seconds_per_output_token * (1 + profile.batch_slope * (count - 1)) if count else 0.0


class Event(NamedTuple):
    """The first token of a request, or its last."""

    request_id: int
    at: float
    ended: bool
    cached_tokens: int = 0
    """Of the prompt."""


class Engine(ABC):
    """A server without its network, which is told what time it is."""

    busy_seconds = 0.0
    """Time in which it worked for a request."""
    adapter_loads = 0
    """Adapters loaded so far."""
    preemptions = 0
    """Requests that lost their blocks and were computed again."""

    @property
    @abstractmethod
    def next_event_at(self) -> float | None:
        """Time of its next change; None while it is idle."""

    @abstractmethod
    def advance(self, now: float) -> Sequence[Event]:
        """Let time pass."""

    @abstractmethod
    def submit(self, request: SimRequest) -> None:
        """Queue a request."""

    @abstractmethod
    def abort(self, request_id: int) -> None:
        """Remove a request, if it is there."""

    @abstractmethod
    def gauges(self) -> tuple[int, int, float]:
        """Return requests running and waiting, and the KV usage."""

    def forecast(self, request: SimRequest) -> float:  # noqa: ARG002  to override
        """Return the seconds until the request would end if it came now, and none after it; NaN for unknown."""
        return math.nan

    def cached_tokens(self, request: SimRequest) -> int:  # noqa: ARG002  to override
        """Return the leading tokens of a prompt that need not be computed."""
        return 0

    def take_kv_changes(self) -> KVChanges | None:
        """Return how its KV cache has changed since the last call; None if it has not, or if it publishes no events."""
        return None

    def adapters(self) -> tuple[Sequence[str], Sequence[str]]:
        """Return the running and the waiting adapters."""
        return (), ()


class Page(NamedTuple):
    """The metrics page of a server at one time."""

    profile: SimProfile
    load: tuple[int, int, float]
    """Requests running and waiting, and the KV usage."""
    running_adapters: tuple[str, ...] = ()
    waiting_adapters: tuple[str, ...] = ()

    @classmethod
    def of(cls, engine: Engine, profile: SimProfile) -> Self:
        """Return the present page of an engine."""
        return cls(profile, engine.gauges(), *(map(tuple, engine.adapters()) if profile.lora_adapters else ()))

    def renewed(self, engine: Engine) -> "Page":
        """Return the present page; the same object if nothing on it has changed."""
        if self.profile.lora_adapters:
            return Page.of(engine, self.profile)
        load = engine.gauges()
        return self if load == self.load else Page(self.profile, load)

    @property
    def text(self) -> bytes:
        """The page as vLLM writes it."""
        (running, waiting, kv_usage), profile = self.load, self.profile
        labels = 'engine="0",model_name="m"'
        return (
            f"vllm:num_requests_running{{{labels}}} {running}.0\n"
            f"vllm:num_requests_waiting{{{labels}}} {waiting}.0\n"
            f"vllm:kv_cache_usage_perc{{{labels}}} {kv_usage!r}\n"
            f'vllm:cache_config_info{{block_size="{profile.block_size}",num_gpu_blocks="{profile.num_gpu_blocks}"}} '
            f"1.0\n{self._lora_line}"
        ).encode()

    @property
    def _lora_line(self) -> str:
        """The series of adapters, which servers without any do not have; its value is the time."""
        if not self.profile.lora_adapters:
            return ""
        running, waiting = ",".join(self.running_adapters), ",".join(self.waiting_adapters)
        labels = f'max_lora="{self.profile.max_lora}",running_lora_adapters="{running}"'
        return f'vllm:lora_requests_info{{{labels},waiting_lora_adapters="{waiting}"}} 1.0\n'


class Simulated(Engine):
    """The machine of `epp.lab.sim`."""

    def __init__(self, profile: SimProfile) -> None:
        self.machine = Machine(profile, every_token=False)

    @property
    def next_event_at(self) -> float | None:
        return self.machine.next_event_at

    def advance(self, now: float) -> Sequence[Event]:
        return [
            Event(one.request_id, one.at_seconds, one.finish_reason is not None, one.cached_tokens)
            for one in self.machine.advance(now)
        ]

    def submit(self, request: SimRequest) -> None:
        self.machine.submit(request)

    def abort(self, request_id: int) -> None:
        self.machine.abort(request_id)

    def take_kv_changes(self) -> KVChanges | None:
        return self.machine.take_kv_changes()

    def cached_tokens(self, request: SimRequest) -> int:
        return request.prompt_tokens - self.machine.uncached_tokens(request)

    def forecast(self, request: SimRequest) -> float:
        return seconds_to_end(self.machine, request)

    def gauges(self) -> tuple[int, int, float]:
        return self.machine.running, self.machine.waiting, self.machine.kv_usage

    @property
    def busy_seconds(self) -> float:  # type: ignore[override]
        return self.machine.busy_seconds

    @property
    def adapter_loads(self) -> int:  # type: ignore[override]
        return self.machine.adapter_loads

    @property
    def preemptions(self) -> int:  # type: ignore[override]
        return self.machine.preemptions

    def adapters(self) -> tuple[Sequence[str], Sequence[str]]:
        return self.machine.running_adapters, self.machine.waiting_adapters
