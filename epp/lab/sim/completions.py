# SPDX-License-Identifier: Apache-2.0
"""Completions of a simulated server: the machine in real time, streams of tokens, and vLLM's metrics."""

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
import xxhash
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from epp.framework.headers import REQUEST_ID
from epp.lab.sim.machine import Machine, MachineObserver
from epp.lab.sim.openai_api import (
    Answer,
    ApiError,
    ChatAnswer,
    ChatRequest,
    CompletionRequest,
    ResponsesAnswer,
    ResponsesRequest,
    Usage,
)
from epp.lab.sim.plan import Plan, decode, make_plan
from epp.lab.sim.profile import SimProfile
from epp.lab.sim.work import Emission, FinishReason, Occupation, SimRequest

_Metric = TypeVar("_Metric", Gauge, Counter, Histogram)
_TICK_SECONDS = 1e-6
_TTFT_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_INTER_TOKEN_BOUNDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
_LATENCY_BOUNDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)


class SimMetrics(MachineObserver):
    """The metrics of one machine; histograms are in seconds."""

    def __init__(self, profile: SimProfile) -> None:
        self.registry = CollectorRegistry()
        self._labels = {"engine": "0", "model_name": profile.model}
        make = self._metric
        self._running = make(Gauge, "num_requests_running", "Number of requests in model execution batches.")
        self._waiting = make(Gauge, "num_requests_waiting", "Number of requests waiting to be processed.")
        self._kv_usage = make(Gauge, "kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.")
        self._prefix_queries = make(
            Counter, "prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens."
        )
        self._prefix_hits = make(
            Counter, "prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens."
        )
        self._prompt_tokens = make(Counter, "prompt_tokens", "Number of prefill tokens processed.")
        self._cached_prompt_tokens = make(
            Counter, "prompt_tokens_cached", "Number of cached prompt tokens (local + external)."
        )
        self._generation_tokens = make(Counter, "generation_tokens", "Number of generation tokens processed.")
        self._preemptions = make(Counter, "num_preemptions", "Cumulative number of preemption from the engine.")
        finished = Counter(
            "vllm:request_success",
            "Count of successfully processed requests.",
            [*self._labels, "finished_reason"],
            registry=self.registry,
        )
        self._finished = {
            reason: finished.labels(*self._labels.values(), reason) for reason in ("stop", "length", "abort")
        }
        histogram = partial(make, Histogram)
        self._time_to_first_token = histogram(
            "time_to_first_token_seconds", "Histogram of time to first token in seconds.", buckets=_TTFT_BOUNDS
        )
        self._inter_token_latency = histogram(
            "inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", buckets=_INTER_TOKEN_BOUNDS
        )
        self._request_latency = histogram(
            "e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", buckets=_LATENCY_BOUNDS
        )
        self._max_lora = profile.max_lora
        self._adapters_at = 0.0
        self._adapters = Gauge(
            "vllm:lora_requests_info",
            "Running stats on lora requests.",
            ["max_lora", "running_lora_adapters", "waiting_lora_adapters"],
            registry=self.registry if profile.lora_adapters else None,
        )
        cache_config = {
            "block_size": str(profile.block_size),
            "cache_dtype": "auto",
            "enable_prefix_caching": "True",
            "engine": "0",
            "kv_cache_size_tokens": str(profile.block_size * profile.num_gpu_blocks),
            "num_gpu_blocks": str(profile.num_gpu_blocks),
        }
        Gauge(
            "vllm:cache_config_info",
            "Information of the LLMEngine CacheConfig",
            list(cache_config),
            registry=self.registry,
        ).labels(**cache_config).set(1)

    def joined(self, prompt_tokens: int, cached_tokens: int) -> None:
        self._prefix_queries.inc(prompt_tokens)
        self._prefix_hits.inc(cached_tokens)

    def first_token(self, prompt_tokens: int, cached_tokens: int, seconds: float) -> None:
        self._prompt_tokens.inc(prompt_tokens)
        self._cached_prompt_tokens.inc(cached_tokens)
        self._time_to_first_token.observe(seconds)
        self._generation_tokens.inc()

    def further_token(self, seconds: float) -> None:
        self._inter_token_latency.observe(seconds)
        self._generation_tokens.inc()

    def preempted(self) -> None:
        self._preemptions.inc()

    def ended(self, reason: FinishReason, seconds: float) -> None:
        """Count a request; only a complete one has a latency."""
        self._finished[reason].inc()
        if reason != "abort":
            self._request_latency.observe(seconds)

    def changed(self, machine: Machine) -> None:
        """Set the gauges; the series of adapters with the latest time is the current one."""
        self._running.set(machine.running)
        self._waiting.set(machine.waiting)
        self._kv_usage.set(machine.kv_usage)
        self._adapters_at = max(machine.now, self._adapters_at + _TICK_SECONDS)  # no two updates have the same time
        names = ",".join(machine.running_adapters), ",".join(machine.waiting_adapters)
        self._adapters.labels(self._max_lora, *names).set(self._adapters_at)

    def page(self) -> bytes:
        """Return the page in the Prometheus text format, version 0.0.4."""
        return generate_latest(self.registry)

    def _metric(self, kind: type[_Metric], name: str, text: str, **more: Any) -> _Metric:
        return kind(f"vllm:{name}", text, list(self._labels), registry=self.registry, **more).labels(**self._labels)


Emissions = asyncio.Queue[Emission]
_EVENT_STREAM: Final = {"content-type": "text/event-stream; charset=utf-8"}
_MAX_RECORDS = 1000
_Request: TypeAlias = type[ChatRequest] | type[CompletionRequest] | type[ResponsesRequest]
_COMPLETIONS: Mapping[str, tuple[_Request, type[Answer]]] = {
    "/v1/chat/completions": (ChatRequest, ChatAnswer),
    "/v1/completions": (CompletionRequest, Answer),
    "/v1/responses": (ResponsesRequest, ResponsesAnswer),
}
"""Bodies of requests and answers, by path."""


class Driver:
    """Owns a machine and advances it in the event loop, in Unix time; other code only reads the machine.

    Late wake-ups do not accumulate: overdue steps end at the times at which they were due.
    """

    def __init__(self, profile: SimProfile) -> None:
        self._loop = asyncio.get_running_loop()
        self._epoch = time.time() - self._loop.time()
        self.metrics = SimMetrics(profile)
        self.machine = Machine(profile, now=self._now(), observer=self.metrics)
        self._queues: dict[int, Emissions] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.idle = asyncio.Event()
        self.idle.set()

    @contextmanager
    def submitted(self, request: SimRequest) -> Iterator[Emissions]:
        """Run a request and yield the queue of its tokens; it is aborted if the block ends before the last one.

        Raises the errors of `Machine.submit`.
        """
        emissions = Emissions()
        self._advance()
        self.machine.submit(request)
        self._queues[request.request_id] = emissions
        self.idle.clear()
        self._schedule()
        try:
            yield emissions
        finally:
            self._advance()
            self.machine.abort(request.request_id)
            del self._queues[request.request_id]
            if not self._queues:
                self.idle.set()
            self._schedule()

    def occupy(self, occupation: Occupation) -> None:
        """Replace the synthetic load; raises the errors of `Machine.occupy`."""
        self._advance()
        self.machine.occupy(occupation)
        self._schedule()

    def abort_all(self) -> None:
        """End every request in flight with finish reason `abort`."""
        self._advance()
        for request_id, emissions in self._queues.items():
            if (emission := self.machine.abort(request_id)) is not None:
                emissions.put_nowait(emission)
        self._schedule()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _now(self) -> float:
        return self._loop.time() + self._epoch

    def _advance(self) -> None:
        for emission in self.machine.advance(self._now()):
            self._queues[emission.request_id].put_nowait(emission)

    def _schedule(self) -> None:
        self.close()
        due = self.machine.next_event_at
        self._timer = None if due is None else self._loop.call_at(due - self._epoch, self._tick)

    def _tick(self) -> None:
        self._advance()
        self._schedule()


class RequestRecord(msgspec.Struct, kw_only=True):
    """One request to a completion path.

    Attributes:
        id: id of the answer; None if the request was refused before.
        path: path with its query, as received.
        model: requested model; None if the body could not be read.
        prompt_tokens: None if the request was refused before they were counted.
        cached_tokens: None until the first output token.
        finish_reason: `stop`, `length` or `abort` (also for a client that disconnected); None while it is in flight
            and if it was refused.
        body_bytes: length of the body.
        body_sha256: hexadecimal digest of the body.
        headers: (lower-case name, value) in order of arrival, with duplicates.
    """

    id: str | None = None
    path: str
    model: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    body_bytes: int
    body_sha256: str
    headers: tuple[tuple[str, str], ...]


class CompletionHandlers:
    """Answers completion requests with one driver, and records the last 1,000 of them."""

    def __init__(self, driver: Driver) -> None:
        self.records: deque[RequestRecord] = deque(maxlen=_MAX_RECORDS)
        self._driver = driver
        self._profile = driver.machine.profile
        self._numbers = count()
        self.is_shutting_down = False
        """Whether new requests are refused with HTTP 500, as vLLM does during shutdown; those in flight continue."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        content = await request.read()
        record = RequestRecord(
            path=request.raw_path,
            body_bytes=len(content),
            body_sha256=hashlib.sha256(content).hexdigest(),
            headers=tuple(
                (name.decode("latin-1").lower(), text.decode("latin-1")) for name, text in request.raw_headers
            ),
        )
        self.records.append(record)
        kind, answering = _COMPLETIONS[request.path]
        body = decode(content, kind)
        record.model = body.model
        if self._profile.overhead_seconds:
            await asyncio.sleep(self._profile.overhead_seconds)
        if self.is_shutting_down:
            raise ApiError(500, "InternalServerError", "This server is shutting down and does not accept new requests")
        number = next(self._numbers)
        plan = make_plan(body.as_chat() if isinstance(body, ResponsesRequest) else body, self._profile, number)
        # Ids are the same in every run, and include the name of the server to be unique.
        own_id = xxhash.xxh3_64_hexdigest(f"{self._profile.name}/{number}".encode())
        answer = answering(request.headers.get(REQUEST_ID) or own_id, plan.model, plan.tool)
        record.id, record.model, record.prompt_tokens = answer.id, plan.model, plan.request.prompt_tokens
        try:
            with self._driver.submitted(plan.request) as emissions:
                if not body.stream:
                    return await _whole(record, plan, answer, emissions)
                with_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
                return await _stream(request, record, plan, answer, emissions, with_usage=with_usage)
        finally:
            record.finish_reason = record.finish_reason or "abort"


def _text(plan: Plan, emission: Emission, *, first: int) -> str:
    return "".join(plan.words[first : _tokens_until(emission)])


def _usage(plan: Plan, last: Emission) -> Usage:
    return Usage(plan.request.prompt_tokens, _tokens_until(last), last.cached_tokens)


def _tokens_until(emission: Emission) -> int:
    # The emission of an aborted request has no token.
    return emission.index + (emission.finish_reason != "abort")


async def _whole(record: RequestRecord, plan: Plan, answer: Answer, emissions: Emissions) -> web.Response:
    while (last := await emissions.get()).finish_reason is None:
        record.cached_tokens = last.cached_tokens
    record.cached_tokens, record.finish_reason = last.cached_tokens, last.finish_reason
    body = answer.whole(_text(plan, last, first=0), last.finish_reason, _usage(plan, last))
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")


async def _stream(
    request: web.Request, record: RequestRecord, plan: Plan, answer: Answer, emissions: Emissions, *, with_usage: bool
) -> web.StreamResponse:
    response = web.StreamResponse(headers=_EVENT_STREAM)
    await response.prepare(request)
    emission = await emissions.get()
    record.cached_tokens = emission.cached_tokens
    if opening := answer.opening():
        await response.write(opening)
    while emission.finish_reason is None:
        await response.write(answer.chunk(_text(plan, emission, first=emission.index), None))
        emission = await emissions.get()
    reason = record.finish_reason = emission.finish_reason
    await response.write(answer.chunk(_text(plan, emission, first=emission.index), reason))
    text, usage = _text(plan, emission, first=0), _usage(plan, emission)
    await response.write(answer.ending(text, reason, usage, with_usage=with_usage))
    await response.write_eof()
    return response
