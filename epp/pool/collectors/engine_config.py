# SPDX-License-Identifier: Apache-2.0
"""Series of inference engines: parameters that name them, and the built-in engines."""

from collections.abc import Mapping
from types import MappingProxyType

from epp.framework.plugin import Parameters
from epp.framework.snapshot import CORE_COLUMNS
from epp.pool.collectors.exposition import Selector

_TAKEN = frozenset(column.name for column in CORE_COLUMNS)
OTHER_SPELLINGS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"vllm:kv_cache_usage_perc": ("vllm:gpu_cache_usage_perc",)}
)
"""Former names of a series, by its current name."""
OTHER_PREFIXES: Mapping[str, str] = MappingProxyType({"sglang:": "sglang_"})
"""Prefixes of series, and their spelling in some versions of the engine."""
RANK_LABELS: Mapping[str, str] = MappingProxyType({"sglang": "dp_rank"})
"""The label of the data-parallel rank, by engine, if the series of a rank are repeated with other labels.

In SGLang every pipeline stage repeats the numbers of its rank, and there are series by priority beside the total.
"""
HOST = "triton"
"""The engine that hosts other engines, whose series appear on its page once they are loaded."""
SERIES_PREFIXES: tuple[tuple[bytes, str, str], ...] = (
    (b"vllm:", "vLLM", "vllm"),
    (b"sglang:", "SGLang", "sglang"),
    (b"sglang_", "SGLang", "sglang"),
    (b"trtllm_", "TensorRT-LLM", "trtllm-serve"),
    (b"nv_trt_llm_", "Triton with TensorRT-LLM", "triton-tensorrt-llm"),  # before its host
    (b"nv_inference_", "Triton", "triton"),
    (b"tgi_", "TGI", "tgi"),
    (b"lmdeploy:", "LMDeploy", "lmdeploy"),
    (b"llamacpp:", "llama.cpp", "llamacpp"),
)
"""Prefix of the series of an engine, its product name, and the built-in engine for it."""


class CustomMetric(Parameters, frozen=True):
    """A further series, for plugins that read endpoint attributes by name."""

    attribute_key: str
    """Name of the attribute."""
    metric_spec: str
    """The series, `name` or `name{label=value,...}`. Of several that match, the highest value counts; add labels to
    select one of them."""

    def __post_init__(self) -> None:
        if not self.attribute_key:
            raise ValueError(
                f"customMetrics has an entry for {self.metric_spec!r} without an attributeKey: give a name"
            )
        if self.attribute_key in _TAKEN:
            raise ValueError(
                f"attributeKey {self.attribute_key!r} is the name of a built-in column: choose another name"
            )
        try:
            Selector.parse(self.metric_spec)
        except ValueError as error:
            raise ValueError(f"attributeKey {self.attribute_key!r}: {error}") from None


class EngineConfig(Parameters, frozen=True):
    """Names of an engine's series, each `name` or `name{label=value,...}`; by default those of the built-in one."""

    name: str
    """The value of the engine label."""
    queued_requests_spec: str = ""
    """Requests in the engine's queue, a gauge."""
    running_requests_spec: str = ""
    """Requests in the engine's batch, a gauge."""
    kv_usage_spec: str = ""
    """Share of the KV cache in use, 0..1."""
    lora_spec: str = ""
    """A series whose labels list adapters, such as `vllm:lora_requests_info`."""
    cache_info_spec: str = ""
    """A series whose labels describe the KV cache."""
    cache_block_size_label_name: str = ""
    """The label of `cacheInfoSpec` with the number of tokens in a block; `block_size` by default."""
    cache_num_blocks_label_name: str = ""
    """The label of `cacheInfoSpec` with the number of blocks; `num_gpu_blocks` by default."""
    cache_block_size_spec: str = ""
    """A series with the number of tokens in a block; takes precedence over the label."""
    cache_num_blocks_spec: str = ""
    """A series with the number of blocks; takes precedence over the label."""
    prefix_queries_spec: str = ""
    """Tokens looked up in the prefix cache, a counter."""
    prefix_hits_spec: str = ""
    """Tokens found in the prefix cache, a counter."""
    custom_metrics: tuple[CustomMetric, ...] = ()
    """Further series."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("an engine without a name: write the value of the engine label, such as name: vllm")
        keys = [metric.attribute_key for metric in self.custom_metrics]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        if twice:
            raise ValueError(f"engine {self.name!r}: customMetrics has attributeKey {twice[0]!r} more than once")
        specs = (getattr(self, name) for name in self.__struct_fields__ if name.endswith("_spec"))
        for spec in filter(None, specs):
            try:
                Selector.parse(spec)
            except ValueError as error:
                raise ValueError(f"engine {self.name!r}: {error}") from None


BUILT_IN: Mapping[str, EngineConfig] = MappingProxyType(
    {
        config.name: config
        for config in (
            EngineConfig(
                name="vllm",
                queued_requests_spec="vllm:num_requests_waiting",
                running_requests_spec="vllm:num_requests_running",
                kv_usage_spec="vllm:kv_cache_usage_perc",
                lora_spec="vllm:lora_requests_info",
                cache_info_spec="vllm:cache_config_info",
                cache_block_size_label_name="block_size",
                cache_num_blocks_label_name="num_gpu_blocks",
                prefix_queries_spec="vllm:prefix_cache_queries_total",
                prefix_hits_spec="vllm:prefix_cache_hits_total",
            ),
            EngineConfig(
                name="sglang",
                queued_requests_spec="sglang:num_queue_reqs",
                running_requests_spec="sglang:num_running_reqs",
                kv_usage_spec="sglang:token_usage",
                # Gauges since 0.5.11, labels of one series before.
                cache_block_size_spec="sglang:page_size",
                cache_num_blocks_spec="sglang:num_pages",
                cache_info_spec="sglang:cache_config_info",
                cache_block_size_label_name="page_size",
                cache_num_blocks_label_name="num_pages",
                prefix_queries_spec="sglang:prompt_tokens_total",
                prefix_hits_spec="sglang:cached_tokens_total",
            ),
            EngineConfig(
                name="trtllm-serve",
                queued_requests_spec="trtllm_num_requests_waiting",
                running_requests_spec="trtllm_num_requests_running",
                kv_usage_spec="trtllm_kv_cache_utilization",
                cache_block_size_spec="trtllm_kv_cache_tokens_per_block",
                cache_num_blocks_spec="trtllm_kv_cache_max_blocks",
                cache_info_spec="trtllm_cache_config_info",
                cache_block_size_label_name="block_size",
                cache_num_blocks_label_name="num_gpu_blocks",
            ),
            EngineConfig(
                name="triton-tensorrt-llm",
                queued_requests_spec="nv_trt_llm_request_metrics{request_type=waiting}",
                running_requests_spec="nv_trt_llm_request_metrics{request_type=scheduled}",
                kv_usage_spec="nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=fraction}",
                cache_block_size_spec="nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=tokens_per}",
                cache_num_blocks_spec="nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=max}",
            ),
            # No running requests: Triton has no gauge of them; nv_inference_exec_count, which llm-d-router reads
            # instead, counts all executions since the start.
            EngineConfig(name="triton", queued_requests_spec="nv_inference_pending_request_count"),
            # No KV usage: tgi_batch_current_max_tokens grows with the batch, and there is no gauge of the capacity.
            EngineConfig(
                name="tgi", queued_requests_spec="tgi_queue_size", running_requests_spec="tgi_batch_current_size"
            ),
            EngineConfig(
                name="lmdeploy",
                queued_requests_spec="lmdeploy:num_requests_waiting",
                running_requests_spec="lmdeploy:num_requests_running",
                kv_usage_spec="lmdeploy:gpu_cache_usage_perc",
            ),
            # With --metrics. Builds since August 2025 have no KV usage.
            EngineConfig(
                name="llamacpp",
                queued_requests_spec="llamacpp:requests_deferred",
                running_requests_spec="llamacpp:requests_processing",
                kv_usage_spec="llamacpp:kv_cache_usage_ratio",
            ),
        )
    }
)
