# SPDX-License-Identifier: Apache-2.0
"""Built-in engines: names of their series, and prefixes by which the engine of a page is recognised."""

from collections.abc import Mapping
from types import MappingProxyType

from epp.pool.collectors.engines.config import EngineConfig

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
        )
    }
)

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
"""The engine that hosts others, whose series appear on its page once they are loaded."""

SERIES_PREFIXES: tuple[tuple[bytes, str, str], ...] = (
    (b"vllm:", "vLLM", "vllm"),
    (b"sglang:", "SGLang", "sglang"),
    (b"sglang_", "SGLang", "sglang"),
    (b"trtllm_", "TensorRT-LLM", "trtllm-serve"),
    (b"nv_trt_llm_", "Triton with TensorRT-LLM", "triton-tensorrt-llm"),  # before its host
    (b"nv_inference_", "Triton", "triton"),
    (b"tgi_", "TGI", ""),
    (b"lmdeploy:", "LMDeploy", ""),
    (b"llamacpp:", "llama.cpp", ""),
)
"""Prefix of the series of an engine, its product name, and the built-in engine for it; empty for none."""
