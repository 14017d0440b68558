"""The `/metrics` page: the machine's state under vLLM's names, labels and help texts."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from epp.sim.machine import Machine
from epp.sim.meters import Histogram

__all__ = ["MetricsPage"]


class MetricsPage(Collector):
    """Renders one machine; `unix_offset_seconds` added to machine time gives Unix time."""

    def __init__(self, machine: Machine, *, unix_offset_seconds: float) -> None:
        self._machine = machine
        self._unix_offset_seconds = unix_offset_seconds
        self._created = machine.now + unix_offset_seconds
        self._labels = {"engine": "0", "model_name": machine.profile.model}
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def render(self) -> bytes:
        """Return the page in the Prometheus text format, version 0.0.4."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield every family of the page."""
        yield from self._gauges()
        yield from self._counters()
        yield from self._histograms()
        if self._machine.profile.lora_adapters:
            yield self._lora_requests_info()
        yield self._cache_config_info()

    def _gauges(self) -> Iterator[Metric]:
        machine = self._machine
        for name, text, value in (
            ("vllm:num_requests_running", "Number of requests in model execution batches.", machine.running),
            ("vllm:num_requests_waiting", "Number of requests waiting to be processed.", machine.waiting),
            ("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", machine.kv_usage),
        ):
            family = GaugeMetricFamily(name, text, labels=list(self._labels))
            family.add_metric(list(self._labels.values()), value)
            yield family

    def _counters(self) -> Iterator[Metric]:
        meters = self._machine.meters
        for name, text, value in (
            (
                "vllm:prefix_cache_queries",
                "Prefix cache queries, in terms of number of queried tokens.",
                meters.prefix_query_tokens,
            ),
            (
                "vllm:prefix_cache_hits",
                "Prefix cache hits, in terms of number of cached tokens.",
                meters.prefix_hit_tokens,
            ),
            ("vllm:prompt_tokens", "Number of prefill tokens processed.", meters.prompt_tokens),
            (
                "vllm:prompt_tokens_cached",
                "Number of cached prompt tokens (local + external).",
                meters.cached_prompt_tokens,
            ),
            ("vllm:generation_tokens", "Number of generation tokens processed.", meters.generation_tokens),
        ):
            family = CounterMetricFamily(name, text, labels=list(self._labels))
            family.add_metric(list(self._labels.values()), value, created=self._created)
            yield family
        finished = CounterMetricFamily(
            "vllm:request_success",
            "Count of successfully processed requests.",
            labels=[*self._labels, "finished_reason"],
        )
        for reason, count in meters.finished.items():
            finished.add_metric([*self._labels.values(), reason], count, created=self._created)
        yield finished

    def _histograms(self) -> Iterator[Metric]:
        meters = self._machine.meters
        for name, text, histogram in (
            (
                "vllm:time_to_first_token_seconds",
                "Histogram of time to first token in seconds.",
                meters.time_to_first_token,
            ),
            (
                "vllm:inter_token_latency_seconds",
                "Histogram of inter-token latency in seconds.",
                meters.inter_token_latency,
            ),
            (
                "vllm:e2e_request_latency_seconds",
                "Histogram of e2e request latency in seconds.",
                meters.request_latency,
            ),
        ):
            family = HistogramMetricFamily(name, text, labels=list(self._labels))
            family.add_metric(list(self._labels.values()), _buckets(histogram), histogram.sum)
            yield family

    def _lora_requests_info(self) -> Metric:
        family = GaugeMetricFamily(
            "vllm:lora_requests_info",
            "Running stats on lora requests.",
            labels=["max_lora", "running_lora_adapters", "waiting_lora_adapters"],
        )
        for (running, waiting), at_seconds in self._machine.lora_series.items():
            labels = [str(self._machine.profile.max_lora), running, waiting]
            family.add_metric(labels, at_seconds + self._unix_offset_seconds)
        return family

    def _cache_config_info(self) -> Metric:
        profile = self._machine.profile
        labels = {
            "block_size": str(profile.block_size),
            "cache_dtype": "auto",
            "enable_prefix_caching": "True",
            "engine": "0",
            "kv_cache_size_tokens": str(profile.block_size * profile.num_gpu_blocks),
            "num_gpu_blocks": str(profile.num_gpu_blocks),
        }
        family = GaugeMetricFamily(
            "vllm:cache_config_info", "Information of the LLMEngine CacheConfig", labels=list(labels)
        )
        family.add_metric(list(labels.values()), 1)
        return family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    return [("+Inf" if bound == float("inf") else str(bound), count) for bound, count in histogram.cumulative()]
