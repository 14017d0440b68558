# SPDX-License-Identifier: Apache-2.0
"""Metrics of one simulated server: vLLM's names, labels, bounds and help texts."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from epp.lab.sim.machine import Machine, MachineObserver
from epp.lab.sim.profile import SimProfile
from epp.lab.sim.work import FinishReason

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
        self._running = self._gauge("num_requests_running", "Number of requests in model execution batches.")
        self._waiting = self._gauge("num_requests_waiting", "Number of requests waiting to be processed.")
        self._kv_usage = self._gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.")
        self._prefix_queries = self._counter(
            "prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens."
        )
        self._prefix_hits = self._counter(
            "prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens."
        )
        self._prompt_tokens = self._counter("prompt_tokens", "Number of prefill tokens processed.")
        self._cached_prompt_tokens = self._counter(
            "prompt_tokens_cached", "Number of cached prompt tokens (local + external)."
        )
        self._generation_tokens = self._counter("generation_tokens", "Number of generation tokens processed.")
        self._preemptions = self._counter("num_preemptions", "Cumulative number of preemption from the engine.")
        finished = Counter(
            "vllm:request_success",
            "Count of successfully processed requests.",
            [*self._labels, "finished_reason"],
            registry=self.registry,
        )
        self._finished = {
            reason: finished.labels(*self._labels.values(), reason) for reason in ("stop", "length", "abort")
        }
        self._time_to_first_token = self._histogram(
            "time_to_first_token_seconds", "Histogram of time to first token in seconds.", _TTFT_BOUNDS
        )
        self._inter_token_latency = self._histogram(
            "inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", _INTER_TOKEN_BOUNDS
        )
        self._request_latency = self._histogram(
            "e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", _LATENCY_BOUNDS
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
        """Count the tokens that were looked for in the prefix cache, and those found."""
        self._prefix_queries.inc(prompt_tokens)
        self._prefix_hits.inc(cached_tokens)

    def first_token(self, prompt_tokens: int, cached_tokens: int, seconds: float) -> None:
        """Count the tokens of the prompt and one of the answer."""
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
        """Set the gauges; of the series of adapters, the one with the latest time is current."""
        self._running.set(machine.running)
        self._waiting.set(machine.waiting)
        self._kv_usage.set(machine.kv_usage)
        self._adapters_at = max(machine.now, self._adapters_at + _TICK_SECONDS)  # no two updates have the same time
        names = ",".join(machine.running_adapters), ",".join(machine.waiting_adapters)
        self._adapters.labels(self._max_lora, *names).set(self._adapters_at)

    def page(self) -> bytes:
        """Return the page in the Prometheus text format, version 0.0.4."""
        return generate_latest(self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"vllm:{name}", text, list(self._labels), registry=self.registry).labels(**self._labels)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"vllm:{name}", text, list(self._labels), registry=self.registry).labels(**self._labels)

    def _histogram(self, name: str, text: str, bounds: tuple[float, ...]) -> Histogram:
        histogram = Histogram(f"vllm:{name}", text, list(self._labels), registry=self.registry, buckets=bounds)
        return histogram.labels(**self._labels)
